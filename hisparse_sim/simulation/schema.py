"""The version of ``summary.json``: for its writer, and for readers that need no more of the simulation."""

SCHEMA = "hisparse-sim/summary/1"
