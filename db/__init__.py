"""What Tilewright remembers: models, jobs, measurements and the best schedules, in SQL.

One set of stores serves SQLite (embedded) and PostgreSQL. To import this package loads nothing;
`db.engine` needs SQLAlchemy, and `db.migrate` needs alembic for a database of an earlier revision.
"""
