"""Benchmarks of hisparse-sim: what it costs, never whether that is good enough.

Each module beside this one that has a ``NAME`` measures one thing (``measure``) and shows it (``table``);
``__main__`` runs them and writes results/bench.md.
"""
