"""Operators of the domain `ai.onnx.ml`: one file a family."""
