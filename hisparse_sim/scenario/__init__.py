"""What is asked: models, nodes, engine settings and workloads, validated once, then frozen.

In: YAML, Hugging Face config.json, command-line settings. Out: a frozen ``Scenario``.
"""

from hisparse_sim.callable_room import make_callable

make_callable(__name__)
