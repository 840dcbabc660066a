"""Example programs, such as `python -m examples.demo`."""
