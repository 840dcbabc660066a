"""Schedules: the knobs (tuning parameters) of a workload, their valid values, and the templates.

A template generates the kernel of a schedule.
"""
