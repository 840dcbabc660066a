"""Planning: converts an ONNX model to graph plans and tuning tasks."""
