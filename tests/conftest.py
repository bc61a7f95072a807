"""The same examples on every run: a failure seen once is seen again."""

from hypothesis import settings

settings.register_profile("house", derandomize=True, deadline=None, database=None)
settings.load_profile("house")
