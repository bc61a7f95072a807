"""Samples and published tables in, a profile with its errors out.

In: timings of kernels, our own (a samples file) or NVIDIA's published tables. Out: a profile file that
``cost`` reads. Nothing below the command line imports this room.
"""
