"""Operators of other domains than ai.onnx: a folder per domain, a file per group of operators."""
