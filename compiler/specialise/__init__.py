"""Compilation of programs for ranges of sizes, on demand or ahead of time, and their cache."""
