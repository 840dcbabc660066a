"""The dashboard: pages over what the REST routes answer, for people with a browser."""
