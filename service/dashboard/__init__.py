"""The dashboard: web pages that show results of the REST routes."""
