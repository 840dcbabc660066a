"""The bodies of requests and answers over HTTP: all that the client knows of the service.

One file a resource; `fields` and `bodies` are what they share.
"""
