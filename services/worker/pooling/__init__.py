"""How hidden states become one vector per sequence."""
