"""Which scheduler runs a request: connections, placement, submissions, and what comes back."""
