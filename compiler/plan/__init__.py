"""Graph plans: partition of a graph into workloads, layouts of values, and costs."""
