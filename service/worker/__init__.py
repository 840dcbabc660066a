"""The measurement worker, which runs on a device with only the standard library and NumPy."""
