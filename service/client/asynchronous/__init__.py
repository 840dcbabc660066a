"""The asynchronous client, whose methods are coroutines."""
