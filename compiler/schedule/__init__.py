"""Schedules: the knobs of a workload, the space of their valid choices, and the templates."""
