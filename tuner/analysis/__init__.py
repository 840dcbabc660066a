"""A loop nest, counted, and its time estimated: what candidates are ranked by."""
