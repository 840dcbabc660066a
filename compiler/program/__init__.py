"""From a graph plan and schedules to a program: kernels, packed weights, memory, artifacts."""
