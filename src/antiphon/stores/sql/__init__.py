"""The stores over SQL: what is asked of a database, written once for SQLite and PostgreSQL."""
