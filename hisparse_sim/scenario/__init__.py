"""What is asked: models, nodes, engine settings and workloads, validated once, then frozen.

In: YAML, Hugging Face config.json, command-line settings. Out: a frozen ``Scenario``.
"""
