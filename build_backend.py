"""Build backend: setuptools, plus a C compiler for the CPU kernels if the build machine has none.

The kernels (services/worker/ops/cpu/) are compiled when the package is built, never when it serves. The compiler is the
clang in Zig's wheel.
"""

from __future__ import annotations

import shutil
from typing import Any

from setuptools.build_meta import *  # noqa: F403 - the other hooks of PEP 517 and 660, unchanged
from setuptools.build_meta import get_requires_for_build_editable as _editable
from setuptools.build_meta import get_requires_for_build_wheel as _wheel


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return _wheel(config_settings) + _compiler()


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return _editable(config_settings) + _compiler()


def _compiler() -> list[str]:
    return [] if any(map(shutil.which, ("gcc", "clang", "cc"))) else ["ziglang>=0.13"]
