"""Request and response bodies: the REST interface between service and client.

Each resource has a module. `fields` and `bodies` are shared by all.
"""
