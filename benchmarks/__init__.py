"""Benchmarks of Tilewright, most of them in comparison with other inference engines.

They write reports to benchmarks/results, and are not part of the test suite.
"""
