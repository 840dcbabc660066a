"""Stores, one per file.

A store takes an engine and a clock, and returns frozen values, never rows.
"""
