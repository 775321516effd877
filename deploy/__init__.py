"""How Quire is put on machines: the gateway, containers, and what watches them."""
