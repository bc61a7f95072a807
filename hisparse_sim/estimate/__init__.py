"""The calculator: how many requests fit, how fast, what limits them; closed form, no clock.

In: model, node, engine, contexts. Out: rows with ranges, the binding limit and what would move it.
"""
