"""Kill, stop and restart everything at random while jobs run; then judge that nothing was lost."""
