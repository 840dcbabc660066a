"""Static analysis of loop nests: operation and byte counts, features and time estimates.

With these results, the cost model and the search rank candidates before they are measured.
"""
