"""Operators of the domain `com.microsoft`: one file per group of related operators."""
