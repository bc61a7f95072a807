"""One scheduling step, decided without a clock, as vLLM V1 decides it.

In: requests and pools. Out: who runs with how many tokens, who is preempted, what is written back.
"""
