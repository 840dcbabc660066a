"""The tuner process: claims jobs, renews its claims and builds candidates."""
