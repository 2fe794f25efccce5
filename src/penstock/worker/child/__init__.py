"""The child processes in which attempts run apart: both sides, and what they say."""
