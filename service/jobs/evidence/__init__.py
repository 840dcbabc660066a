"""Verification of programs and review of measurements."""
