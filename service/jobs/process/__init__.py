"""The tuner process: claims jobs, holds their leases and builds candidates."""
