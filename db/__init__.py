"""The database of Tilewright: models, jobs, measurements and the best schedules, in SQL.

The same code serves SQLite (in the process) and PostgreSQL (a server). Importing this package
imports none of its modules. `db.engine` needs SQLAlchemy. `db.migrate` needs alembic only to
migrate a database of an earlier revision.
"""
