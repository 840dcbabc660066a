"""The harness that runs native code: a C program in a sandbox, and the agent's side of it."""
