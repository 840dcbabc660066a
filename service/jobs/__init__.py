"""Runs tuning jobs: plans a model, tunes its kernels, verifies the compiled model, stores an
artifact.

This package imports no web framework.
"""
