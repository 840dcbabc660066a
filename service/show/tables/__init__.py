"""Columns of tables, one file per area. Each medium shows some of them."""
