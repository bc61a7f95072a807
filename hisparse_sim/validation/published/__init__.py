"""What others measured, beside what the simulator says of the same case.

A *source* is a kind of table (``sources``) that knows how to read its columns and how to set its rows up
as simulations; the shipped tables lie in ``configs/validation``. No constant is fitted to any of them
except where a source's text says so.
"""
