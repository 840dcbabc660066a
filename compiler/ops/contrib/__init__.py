"""Operators of domains other than ONNX's own: one folder per domain, one file per family."""
