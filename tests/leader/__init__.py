"""The leader: election, observer, chores."""
