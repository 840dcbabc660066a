"""Counts what a loop nest does and estimates its time; candidates are ranked by both."""
