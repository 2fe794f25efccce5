"""Where jobs live: the contract and its implementations."""
