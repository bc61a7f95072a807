"""What a ``vllm serve`` command asks for: in goes the command, out come engine settings and findings.

``source`` finds the command, ``parse`` reads its flags, ``translate`` turns them into a scenario's
fields, ``startup`` says what vLLM would refuse and what ought to be warned of.
"""
