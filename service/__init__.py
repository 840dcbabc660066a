"""The service: models in over HTTP, tuning jobs, measurements leased to workers, artifacts out.

`service.worker` runs on a device and needs the standard library and NumPy alone, so importing this
package loads nothing.
"""
