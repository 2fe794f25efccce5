"""One suite for every engine: it proves the contract's sentences and names no engine."""
