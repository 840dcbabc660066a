"""Stored schedules, families and cost models that a job starts from, and their exchange."""
