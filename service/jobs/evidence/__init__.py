"""Evidence that a job's result is correct and fast: verification, end-to-end races and reviews."""
