"""Where KV lives: bytes a block, pool sizes, block pools, residency tiers, prefix identity.

In: a scenario. Out: sizes (layout, budget) and the mutable pools that the scheduler decides over.
"""
