"""What keeps the store in order: the election, the chores, the watch over the workers."""
