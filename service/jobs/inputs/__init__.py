"""Inputs of a model for verification and timing: given by the user, or random."""
