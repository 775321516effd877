"""The version of the installed Quire package."""

from __future__ import annotations


def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("quire")
    except PackageNotFoundError:
        return "unknown (not installed)"
