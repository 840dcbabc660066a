"""Graph plans: how a graph is cut into workloads, how values lie in memory, and what that costs."""
