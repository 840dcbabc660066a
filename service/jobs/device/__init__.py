"""The machine on which a job measures: the local machine, or remote workers."""
