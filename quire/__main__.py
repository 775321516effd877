"""Runs the `quire` command as `python -m quire`."""

from __future__ import annotations

import os
import sys

# `python -m` puts the current directory first on the module path, so a file json.py there would run in place of the
# standard library's. Keep the entry only if it is Quire's own source tree, which may not be installed.
_HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if not sys.flags.safe_path and os.path.realpath(sys.path[0]) != _HOME:
    del sys.path[0]

from quire.cli.main import main  # noqa: E402

sys.exit(main())
