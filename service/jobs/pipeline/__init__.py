"""A job from its specification to a verified artifact."""
