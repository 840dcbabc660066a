"""Building of programs from graph plans: kernels, packed weights, memory plan, artifacts."""
