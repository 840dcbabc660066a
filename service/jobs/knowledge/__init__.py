"""Stored schedules and cost models that a job starts from, and the exchange of records."""
