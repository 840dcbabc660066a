"""Rules that translate ATen operators to ONNX, one file per family; each file defines `RULES`."""
