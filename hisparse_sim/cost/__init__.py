"""Seconds: of an engine step, of a transfer, of missed rows, each with its source.

In: counts of what a step has to do, and a calibration profile. Out: seconds by part.
"""
