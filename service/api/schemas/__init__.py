"""Request and response bodies: the REST interface between service and client.

Each resource has a module. The modules `fields` and `bodies` have shared definitions.
"""
