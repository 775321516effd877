"""Compiles the CPU kernels beside their sources, so that wheels and editable installs carry them."""

from __future__ import annotations

import runpy
import sys

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py


class BuildWithKernels(build_py):
    def run(self) -> None:
        # By path: the package around it imports torch, which a build environment does not have.
        kernels = runpy.run_path("services/worker/ops/cpu/build.py")
        try:
            kernels["build"]()
        except kernels["BuildError"] as error:
            print(f"warning: no CPU kernels, the worker will fall back to plain torch: {error}", file=sys.stderr)
        super().run()


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithKernels}, distclass=PlatformDistribution)
