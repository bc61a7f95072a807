"""The calculator: how many requests fit, how fast, what limits them; closed form, no clock.

In: model, node, engine, contexts. Out: rows with ranges, the binding limit and what would move it.
"""

from hisparse_sim.callable_room import make_callable

make_callable(__name__)
