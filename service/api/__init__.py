"""The REST application: routes, schemas, and what requests go through."""
