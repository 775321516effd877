"""The streams of routers: which router each sequence belongs to, and what that router has not been sent yet."""
