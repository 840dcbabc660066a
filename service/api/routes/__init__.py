"""The routes under /v1, one group a file; each module's `router` is found by itself."""
