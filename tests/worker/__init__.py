"""The worker: attempts, slots, exchanges, leases, the end."""
