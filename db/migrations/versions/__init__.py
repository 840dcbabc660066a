"""One revision a file; the number says the order."""
