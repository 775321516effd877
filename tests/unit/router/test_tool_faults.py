"""Whose schema an error names where all tools' make one structure, and how much is tried to find out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from services.router.chat import tool_faults
from services.router.chat.request import ChatRequest
from services.router.chat.tool_faults import names_tool
from services.router.chat.tool_grammar import calls_structure
from services.router.chat.tools import OPENAI_PATH, Tool
from services.router.constraints import grammar_checker as grammar_checks
from services.router.constraints.grammar_checker import GrammarChecks
from services.router.errors import ApiError
from services.router.generation.options import GenerationOptions
from services.router.parameters.sampling import SamplingParams, StopConditions
from services.router.text.threads import TextThreads

THREADS = TextThreads(1)
GOOD, REFUSED, TOO_MUCH = "good", "refused", "too much"
# So many halves of 64 are tried, and the one that is left.
MOST = 7


class ScriptedProcess:
    """Stands for the process that checks, and answers by what a source has in it; no answer where that is too much."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.checks = GrammarChecks()

    def ask(self, _: object, question: dict[str, Any]) -> bytes:
        self.num_asked += 1
        if TOO_MUCH in question["source"]:
            return b""
        answer = {"error": "it is refused"} if REFUSED in question["source"] else {"grammar": "g"}
        return json.dumps(answer).encode() + b"\n"


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedProcess]:
    process = ScriptedProcess()
    monkeypatch.setattr(grammar_checks._CheckProcess, "_ask", lambda self, question: process.ask(self, question))
    monkeypatch.setattr(tool_faults, "grammar_checks", lambda: process.checks)
    yield process
    process.checks.close()


async def error_of(process: ScriptedProcess, *sources: str) -> ApiError:
    """Of tools with such schemas, as a client sees it."""
    tools = tuple(Tool(f"f{index}", parameters={"pattern": source}) for index, source in enumerate(sources))
    request = ChatRequest(None, [], GenerationOptions(SamplingParams(), StopConditions()), tools)
    with pytest.raises(ApiError) as caught:
        await process.checks.check(calls_structure(tools, True, OPENAI_PATH))
    return await names_tool(caught.value, request, request.tools, THREADS)


@pytest.mark.parametrize("index", [0, 37, 63])
async def test_the_tool_at_fault_is_found_by_halves(process: ScriptedProcess, index: int) -> None:
    sources = [GOOD] * 64
    sources[index] = REFUSED
    assert (await error_of(process, *sources)).param == f"tools[{index}].function.parameters"
    assert process.num_asked <= 1 + MOST


@pytest.mark.parametrize("sources", [[TOO_MUCH], [GOOD] * 63 + [TOO_MUCH]])
async def test_what_took_too_long_is_not_tried_again(process: ScriptedProcess, sources: list[str]) -> None:
    """It would take as long, and all other clients' structures would wait for it."""
    error = await error_of(process, *sources)
    assert error.param == "tools"
    assert "too much time or memory" in error.message
    assert process.num_asked == 1


async def test_a_search_ends_with_the_first_half_that_takes_too_long(
    process: ScriptedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though all tools together were refused at once."""
    answer = process.ask

    def ask(self: object, question: dict[str, Any]) -> bytes:
        is_first = process.num_asked == 0
        return answer(self, {**question, "source": REFUSED} if is_first else question)

    monkeypatch.setattr(process, "ask", ask)
    error = await error_of(process, GOOD, TOO_MUCH, GOOD, GOOD)
    assert (error.param, "it is refused" in error.message) == ("tools", True)
    assert process.num_asked == 2


async def test_a_search_that_takes_long_is_given_up(process: ScriptedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_faults, "_MAX_SECONDS", 0)
    assert (await error_of(process, GOOD, REFUSED)).param == "tools"
    assert process.num_asked <= 2
