"""Tuning jobs: plans a model, tunes its kernels, verifies the compiled model and stores its
artifact.

This package imports no web framework.
"""
