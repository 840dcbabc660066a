"""The steps of a job, from its specification to a verified artifact."""
