"""`python -m quire` is the `quire` command."""

from __future__ import annotations

import os
import sys

# `python -m` puts the current directory first on the module path, where a file json.py would run in place of the
# standard library's. Only a source tree that is not installed is found that way.
_HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if not sys.flags.safe_path and os.path.realpath(sys.path[0]) != _HOME:
    del sys.path[0]

from quire.cli.main import main  # noqa: E402

sys.exit(main())
