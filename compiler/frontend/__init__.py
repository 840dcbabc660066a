"""Conversion of model formats to graphs."""
