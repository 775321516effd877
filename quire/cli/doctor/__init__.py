"""`quire doctor`: checks the host before Quire runs on it, and says what to do."""

from quire.cli.doctor.main import main

__all__ = ["main"]
