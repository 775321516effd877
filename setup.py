"""Compiles the CPU kernels beside their sources, so that wheels and editable installs carry them."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

KERNELS = Path("services/worker/ops/cpu")
# Wheels for Linux name the oldest glibc that they run on (PEP 600).
OLDEST_GLIBC = (2, 17)


class BuildWithKernels(build_py):
    def run(self) -> None:
        # By path: the package around it imports torch, which a build environment does not have.
        kernels = runpy.run_path(str(KERNELS / "build.py"))
        try:
            kernels["build_if_older"]()
        except kernels["BuildError"] as error:
            print(f"warning: no CPU kernels, the worker will fall back to plain torch: {error}", file=sys.stderr)
        super().run()


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


class KernelWheel(bdist_wheel):
    """A wheel for every Python of one platform: the kernels are libraries for ctypes and use no C API of Python's."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        if platform.startswith("linux_"):
            major, minor = self._needed_glibc()
            platform = platform.replace("linux_", f"manylinux_{major}_{minor}_", 1)
        return "py3", "none", platform

    @staticmethod
    def _needed_glibc() -> tuple[int, int]:
        """The newest version of glibc whose symbols a library asks for."""
        found = [OLDEST_GLIBC]
        for library in KERNELS.glob("*.so"):
            versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
            found += [(int(major), int(minor)) for major, minor in versions]
        return max(found)


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": KernelWheel}, distclass=PlatformDistribution)
