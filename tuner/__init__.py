"""The tuner: measures candidate schedules on a device and keeps the fastest correct one."""
