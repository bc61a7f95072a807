"""Pages for a browser, each one file without a network: runs as a report, and the calculator.

In: run folders, or the shipped models and nodes. Out: HTML, made of what this folder's Python computes and
of its CSS and JavaScript.
"""
