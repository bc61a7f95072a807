"""The clock: simpy processes join arrivals, engine steps and transfers; a recorder writes it down.

In: a scenario. Out: a ``Result`` (summary, requests, steps).
"""
