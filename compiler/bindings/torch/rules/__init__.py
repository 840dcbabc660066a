"""Rules that write ATen operators in ONNX, one file a family; each file has its `RULES`."""
