"""Building, running and checking candidates. Device-side modules need NumPy alone."""
