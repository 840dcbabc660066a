"""Operators of other domains than ONNX's own: a folder a domain, one file a family."""
