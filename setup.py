"""Compiles the CPU kernels next to their sources, so that wheels and editable installs contain them."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

KERNELS = Path("services/worker/ops/cpu")
# Lower bound of the glibc version in a Linux wheel's tag: the oldest glibc that the wheel runs on (PEP 600).
OLDEST_GLIBC = (2, 17)


class BuildWithKernels(build_py):
    def run(self) -> None:
        # Run the file by its path: importing its package would import torch, which a build environment does not have.
        kernels = runpy.run_path(str(KERNELS / "build.py"))
        try:
            kernels["build_if_older"]()
        except kernels["BuildError"] as error:
            print(f"warning: no CPU kernels, so the worker will use plain torch: {error}", file=sys.stderr)
        super().run()


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


class KernelWheel(bdist_wheel):
    """Builds one wheel per platform for all Python versions: ctypes loads the kernels, which do not use Python's C
    API."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        if platform.startswith("linux_"):
            major, minor = self._needed_glibc()
            platform = platform.replace("linux_", f"manylinux_{major}_{minor}_", 1)
        return "py3", "none", platform

    @staticmethod
    def _needed_glibc() -> tuple[int, int]:
        """Returns the newest glibc version whose symbols a kernel library needs."""
        found = [OLDEST_GLIBC]
        for library in KERNELS.glob("*.so"):
            versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
            found += [(int(major), int(minor)) for major, minor in versions]
        return max(found)


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": KernelWheel}, distclass=PlatformDistribution)
