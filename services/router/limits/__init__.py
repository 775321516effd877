"""Bounds on what one request, one text or one client may take of a router."""
