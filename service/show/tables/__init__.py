"""Definitions of table columns, one module per area.

Each output (a command, a notebook, a page of the dashboard) selects the columns that it shows.
"""
