"""Compilation, timing and output checks of candidates.

The modules that run on devices depend on no package but NumPy.
"""
