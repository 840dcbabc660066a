"""The machine that a job tunes for: local, or reached through leases."""
