"""The routes under /v1, one group per module.

The `router` of each module is found automatically.
"""
