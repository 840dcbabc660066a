"""Explanations, profiles and comparisons for people. Nothing here decides a job."""
