"""From an ONNX model to its graph plans and tuning tasks."""
