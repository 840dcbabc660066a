"""The service: HTTP interface, tuning jobs, measurement leases for workers, artifacts.

Importing this package imports no other module, because `service.worker` runs on devices that have
only the standard library and NumPy.
"""
