"""One file per revision; the number in its name gives the order."""
