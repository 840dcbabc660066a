"""Programs for known sizes and values: compiled on demand or ahead of time, and stored."""
