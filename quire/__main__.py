"""Runs the `quire` command as `python -m quire`."""

from __future__ import annotations

import os
import sys

# `python -m` puts the current directory first in sys.path, so that a file json.py in it would hide the standard
# library's json. Remove the directory, unless it is Quire's source tree, from which Quire can run without installation.
_HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if not sys.flags.safe_path and os.path.realpath(sys.path[0]) != _HOME:
    del sys.path[0]

from quire.cli.main import main  # noqa: E402 - after the change of sys.path

sys.exit(main())
