"""The PostgreSQL engine: one store that every process of a team shares."""
