"""The parent process of ``penstock worker``: spawns, watches and restarts worker processes."""
