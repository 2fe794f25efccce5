"""Jobs in the memory of one process: the readable reference of the contract."""
