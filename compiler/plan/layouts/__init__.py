"""Layout assignment: the possible layouts of values, their costs, and the minimum total cost."""
