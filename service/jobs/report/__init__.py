"""Explains, profiles and compares models for users. This package does not affect the result of a
job.
"""
