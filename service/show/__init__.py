"""Formats results as tables, messages and charts for the terminal, notebooks and the dashboard."""
