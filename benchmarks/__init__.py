"""Side-by-side measurements with other engines: reports, never tests."""
