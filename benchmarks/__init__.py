"""Benchmarks that compare Tilewright with other inference engines. They write reports and are not
part of the test suite.
"""
