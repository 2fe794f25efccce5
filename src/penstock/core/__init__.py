"""Pure rules: no clock, no thread, no store."""
