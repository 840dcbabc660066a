"""Programs for known sizes and values: made when a run needs them, or ahead of time, and stored."""
