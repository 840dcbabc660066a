"""The stores: classes that read and write the database, one area per file.

A store is created with an engine and a clock. Its methods return immutable values, not SQLAlchemy
rows.
"""
