"""Graph plans: how a graph is partitioned into workloads, its values' layouts, and their costs."""
