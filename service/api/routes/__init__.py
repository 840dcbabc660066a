"""The routes under /v1, one group per module; each `router` is discovered automatically."""
