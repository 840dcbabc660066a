"""The client that waits: made of the coroutines beside it."""
