"""The measurement worker. It runs on a device: the standard library and NumPy are all it needs."""
