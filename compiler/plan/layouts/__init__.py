"""Layout assignment: the possible layouts of values, their costs, and the cheapest combination."""
