"""Operators of domains other than ai.onnx: one folder per domain, one file per operator family."""
