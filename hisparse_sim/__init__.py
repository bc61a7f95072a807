"""hisparse-sim: a discrete-event simulator and capacity planner for tiered KV memory."""

__version__ = "0.1.0"
