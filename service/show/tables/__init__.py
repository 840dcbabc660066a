"""Definitions of table columns, one module per area. A terminal, notebook or page selects some."""
