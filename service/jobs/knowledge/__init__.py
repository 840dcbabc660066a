"""Stored schedules and cost models that a new job starts from, and the exchange of tuning
records.
"""
