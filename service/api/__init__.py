"""The REST application: routes, schemas of bodies, and checks of each request."""
