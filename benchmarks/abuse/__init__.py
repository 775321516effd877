"""What one client can do to another: hostile and very large requests, sent beside a well-behaved client's stream."""
