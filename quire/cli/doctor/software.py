"""Checks of Python, of the packages that `quire serve` needs, and of the compiled CPU kernels."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, requires
from typing import TYPE_CHECKING

from quire.cli.doctor.finding import Finding, ok, problem, warning
from shared.version import version

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# What can be installed, each with its extra.
EXTRAS = {"serve": "local", "gateway": "gateway", "router": "router", "scheduler": "scheduler", "worker": "worker"}


def check_packages(part: str, install_command: str) -> Finding:
    """Compares the installed packages with those that a part needs, or `quire serve` with all of them.
    `install_command` installs them."""
    wrong = [*_wrong_packages(EXTRAS[part])]
    if wrong:
        complete = [other for other in EXTRAS if other != part and not any(_wrong_packages(EXTRAS[other]))]
        others = f"; to check what is installed: --part {' or '.join(complete)}" if complete else ""
        return problem("packages", "; ".join(wrong), install_command + others)
    return ok("packages", f"Quire {version()}, Python {platform.python_version()}; all packages of quire {part}")


def check_kernels() -> Finding:
    """Loads the compiled CPU kernels."""
    import torch

    from services.worker.startup import fallback_reason

    reason = fallback_reason(torch.device("cpu"), torch.float32)
    if reason is not None:
        return warning("kernels", reason, "install Quire again, from a wheel or with a C compiler")
    return ok("kernels", "the compiled CPU kernels load")


def _wrong_packages(extra: str) -> Iterator[str]:
    from packaging.requirements import Requirement

    for requirement in _requirements(Requirement(f"quire[{extra}]"), seen=set()):
        try:
            installed = distribution(requirement.name).version
        except PackageNotFoundError:
            yield f"{requirement.name} is missing"
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield f"{requirement.name} is {installed}, which is not {requirement.specifier}"


def _requirements(of: Requirement, seen: set[str]) -> Iterator[Requirement]:
    """Returns what Quire itself requires with the extras of `of`, not what those packages require. `seen`: extras that
    are done; the empty one stands for what Quire always requires."""
    from packaging.requirements import Requirement

    for extra in {"", *of.extras} - seen:
        seen.add(extra)
        for requirement in map(Requirement, requires("quire") or ()):
            is_of_extra = requirement.marker is not None and "extra" in str(requirement.marker)
            if is_of_extra != bool(extra) or (requirement.marker and not requirement.marker.evaluate({"extra": extra})):
                continue
            if requirement.name == "quire":
                yield from _requirements(requirement, seen)
            else:
                yield requirement
