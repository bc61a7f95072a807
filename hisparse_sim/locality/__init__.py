"""Which selected rows lie in a hot buffer: a model of how rows are selected again, and exact replays.

In: a locality file (configs/localities) or recorded top-k positions. Out: shares of rows that miss.
"""
