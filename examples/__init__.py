"""Programs to read and to run: `python -m examples.demo`."""
