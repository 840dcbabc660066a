"""The tuner process: claims jobs, renews their claims and builds candidates."""
