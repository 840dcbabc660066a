"""The dashboard: web pages that show the answers of the REST routes."""
