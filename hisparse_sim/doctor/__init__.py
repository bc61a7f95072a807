"""Whether a host can start a plan: in go a plan and a host's facts, out comes a list of checks.

``pinned`` is what the plan needs, ``host`` what a machine has (described, or read by ``read_host``),
``checks`` sets one against the other.
"""
