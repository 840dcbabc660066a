"""Schema migrations, run by `db.migrate`."""
