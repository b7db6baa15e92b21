"""The PPD paper's figures and tables from virtual time, each beside what the paper says and what was measured.

A chapter (`chapters.py`) is one or more figures of the paper: it has targets, runs what it needs in the `lab`, and
comes back with findings and panels. Whatever misses says why; nothing here is tuned to meet a figure.
"""
