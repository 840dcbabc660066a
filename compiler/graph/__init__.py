"""The high-level IR: a graph of operators over typed tensors."""
