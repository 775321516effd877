"""Measures how hostile and very large requests affect another client that streams at the same time."""
