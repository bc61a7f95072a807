"""A user's own measurements beside the simulation of the same case.

In: a scenario and what a benchmark, a scrape of ``/metrics`` and an engine's log say (one module a kind of
input). Out: figures side by side, the scenario's assumptions that they contradict, a corrected scenario.
"""
