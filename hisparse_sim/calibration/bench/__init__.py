"""The CUDA benchmark suite: built on demand, checked against references, then timed under a budget.

In: a GPU. Out: a samples file. ``toolchain`` and ``build`` make the library from ``../csrc``, ``gpu``
calls it, ``checks`` and the benchmarks describe operations, ``suite`` runs them.
"""
