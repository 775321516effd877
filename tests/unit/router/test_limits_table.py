"""The limits in docs/limits.md equal the constants in the code."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from deploy.envoy.config import GatewayConfig
from services.router.chat import tools
from services.router.config import RouterConfig
from services.router.constraints import resolution as constraints
from services.router.dispatch import submission
from services.router.limits import json_bounds, large_bodies, text_size
from services.router.rpc import wire_bounds
from services.scheduler import submit_checks
from shared.message_size import DEFAULT_MAX_BODY_BYTES, ENVELOPE_BYTES

DOCUMENT = Path(__file__).parents[3] / "docs" / "limits.md"
# gRPC's default limit for a received message.
DEFAULT_MESSAGE_BYTES = 4 * 1024 * 1024


def rows() -> dict[str, str]:
    """Maps each constant's name to its value in the table."""
    cells = [line.split("|") for line in DOCUMENT.read_text().splitlines() if line.endswith("` |")]
    return {constant.strip(" `"): limit.strip() for _, _, limit, _, constant, _ in cells}


@pytest.mark.parametrize("constant", rows())
def test_the_table_has_the_code_s_value(constant: str) -> None:
    module, _, name = constant.rpartition(".")
    assert float(rows()[constant].replace(",", "")) == getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", [json_bounds, large_bodies, text_size, wire_bounds, tools, submission])
def test_every_bound_of_these_is_in_the_table(module: object) -> None:
    bounds = {name for name in vars(module) if name.startswith("MAX_")}
    imported = "MAX_ITEMS" if module is wire_bounds else ""
    name = inspect.getmodule(module).__name__  # type: ignore[union-attr]
    assert {f"{name}.{bound}" for bound in bounds - {imported}} <= rows().keys()


def test_gateway_and_router_take_the_same_bodies() -> None:
    assert GatewayConfig().max_body_bytes == RouterConfig().max_body_bytes == DEFAULT_MAX_BODY_BYTES
    assert DEFAULT_MAX_BODY_BYTES + ENVELOPE_BYTES < DEFAULT_MESSAGE_BYTES


def test_router_and_scheduler_take_the_same_bad_words() -> None:
    assert constraints.MAX_BAD_WORD_TOKENS == submit_checks.MAX_BAD_WORD_TOKENS
    assert 2 * constraints.MAX_BAD_WORDS == submit_checks.MAX_BAD_WORDS
