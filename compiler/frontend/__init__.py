"""Model formats to graphs."""
