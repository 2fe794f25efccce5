"""What runs jobs: the exchange loop, the slots, the lease."""
