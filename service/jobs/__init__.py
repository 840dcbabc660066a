"""Runs tuning jobs: plans a model, tunes, verifies and delivers it. Imports no web framework."""
