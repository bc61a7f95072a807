"""Who asks what, when: streams of sessions from generators and recorded traces.

In: a workload description. Out: an iterator of ``Session``.
"""

from hisparse_sim.workload.make import make_workload

__all__ = ["make_workload"]
