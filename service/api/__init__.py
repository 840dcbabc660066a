"""The REST application: routes, schemas of request and response bodies, and checks of each
request.
"""
