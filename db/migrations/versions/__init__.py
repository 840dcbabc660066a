"""The schema migrations: one file per revision, applied in the order of their numbers."""
