"""Static analysis of loop nests: operation and byte counts, features and time estimates.

The cost model and the search rank candidates by them before any measurement.
"""
