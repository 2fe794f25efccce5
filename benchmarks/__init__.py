"""How fast Penstock is beside its peers, on this machine, in one run."""
