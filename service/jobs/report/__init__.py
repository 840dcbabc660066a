"""Explains, profiles and compares models for users. Nothing here affects the result of a job."""
