"""Builders, runners and output checks of candidates. Modules for devices need only NumPy."""
