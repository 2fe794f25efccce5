"""Real servers for the tests: started when needed, theirs alone, and gone with them."""
