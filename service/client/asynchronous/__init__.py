"""The client in coroutines."""
