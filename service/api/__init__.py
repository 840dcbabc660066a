"""The REST application: its routes, the schemas of its bodies, and the checks on each request."""
