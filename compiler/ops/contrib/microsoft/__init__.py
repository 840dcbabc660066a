"""Operators of the domain `com.microsoft`: one file a family."""
