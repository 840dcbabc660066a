"""The bodies of requests and answers over HTTP: the interface of service and client.

Each resource has a module. `fields` and `bodies` are shared by all.
"""
