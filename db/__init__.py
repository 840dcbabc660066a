"""The database of Tilewright: models, jobs, measurements and the best schedules, in SQL.

One set of stores serves SQLite (embedded) and PostgreSQL. Importing this package loads nothing
else; `db.engine` needs SQLAlchemy, and `db.migrate` needs alembic for a database of an earlier
revision.
"""
