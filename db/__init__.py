"""What Tilewright remembers: models, jobs, measurements and the best schedules, in SQL.

SQLite (embedded) and PostgreSQL, through one set of stores. Importing this package loads
nothing; `db.engine` needs SQLAlchemy, `db.migrate` needs alembic.
"""
