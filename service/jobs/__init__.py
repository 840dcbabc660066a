"""From a job to a verified artifact. Nothing here imports a web framework."""
