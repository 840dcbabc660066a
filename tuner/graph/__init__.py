"""The choice above the workloads: fusion, passes and layouts of a whole graph, by measurement."""
