"""Building, running and checking candidates. `wire`, `measurement` and the sandbox need NumPy alone."""
