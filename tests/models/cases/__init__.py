"""The cases: one module per module of services/worker/models/decoders, and one for the generic backend."""

from __future__ import annotations

import importlib
import pkgutil

from tests.models.case import Case

MODULES = sorted(module.name for module in pkgutil.iter_modules(__path__))
BY_MODULE: dict[str, list[Case]] = {name: importlib.import_module(f"{__name__}.{name}").CASES for name in MODULES}
ALL: list[Case] = [case for cases in BY_MODULE.values() for case in cases]
