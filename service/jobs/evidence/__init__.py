"""Verification of programs, end-to-end races, and reviews of measurements."""
