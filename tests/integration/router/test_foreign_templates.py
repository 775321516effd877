"""Templates that requests bring are rendered in several processes, each within bounds, and wait a bounded time."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.router.errors import ApiError, ErrorKind
from services.router.prompt.prompt_template import ForeignTemplate
from services.router.template import foreign as foreign_templates
from services.router.template.content import ContentForm
from services.router.template.foreign import BUSY, LOST, NUM_PROCESSES, ForeignTemplates
from services.router.template.probe import SHOWS_NOTHING, TemplateTraits
from shared.python_child import child_environment
from tests.fakes.waiting import HANG_S

MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
async def templates() -> AsyncIterator[ForeignTemplates]:
    templates = ForeignTemplates()
    yield templates
    templates.close()


def pids(templates: ForeignTemplates) -> list[int]:
    return [child._process.pid for child in templates._all if child._process is not None]


async def test_one_that_is_stuck_does_not_hold_up_the_others(
    templates: ForeignTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_templates, "MAX_SECONDS", 60.0)
    assert await templates.render("first", {}, MESSAGES) == "first"
    (first,) = pids(templates)
    os.kill(first, signal.SIGSTOP)
    stuck = asyncio.create_task(templates.render("stuck", {}, MESSAGES))
    await asyncio.sleep(0)
    for text in ("second", "third"):
        assert await templates.render(text, {}, MESSAGES) == text
    assert not stuck.done()
    os.kill(first, signal.SIGCONT)
    assert await stuck == "stuck"
    assert len(pids(templates)) == 2


async def test_a_process_outlives_the_rendering_that_is_ended(templates: ForeignTemplates) -> None:
    assert await templates.render("first", {}, MESSAGES) == "first"
    before = pids(templates)
    for hostile in ("{{ 'a' * 10 ** 9 }}", "{{ (' ' * 10 ** 6) * 2 }}"):
        with pytest.raises(ApiError) as caught:
            await templates.render(hostile, {}, MESSAGES)
        assert caught.value.kind is ErrorKind.INVALID_REQUEST
    assert await templates.render("{{ messages[0].content }}", {}, MESSAGES) == "Hi"
    assert pids(templates) == before


@pytest.mark.parametrize(("limit", "answer"), [("CPU_SECONDS", LOST), ("WALL_SECONDS", BUSY)])
def test_a_rendering_that_got_no_cpu_time_is_not_called_too_expensive(limit: str, answer: dict[str, Any]) -> None:
    """Only the limit of 0.2 s can be reached. Half of the limit of CPU time tells the two cases apart."""
    limits = {"CPU_SECONDS": 1000.0, "WALL_SECONDS": 1000.0} | {limit: 0.2}
    code = "from services.router.template import process\n"
    code += "".join(f"process.{name} = {value}\n" for name, value in limits.items()) + "process.main()\n"
    task = {"source": LOOP, "special_tokens": {}, "content_form": "STRING", "arguments": MESSAGES}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        input=json.dumps(task).encode() + b"\n",
        stdout=subprocess.PIPE,
        env=child_environment(),
        timeout=HANG_S,
        check=True,
    )
    assert json.loads(done.stdout) == answer


async def test_a_child_that_another_program_kills_does_not_blame_the_template(templates: ForeignTemplates) -> None:
    assert await templates.render("first", {}, MESSAGES) == "first"
    (first,) = pids(templates)
    os.kill(first, signal.SIGSTOP)
    stuck = asyncio.create_task(templates.render("stuck", {}, MESSAGES))
    await asyncio.sleep(0)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(ApiError, match="too busy") as caught:
        await stuck
    assert caught.value.kind is ErrorKind.OVERLOADED
    assert await templates.render("{{ messages[0].content }}", {}, MESSAGES) == "Hi"


async def test_an_error_of_a_template_is_not_mistaken_for_its_size(templates: ForeignTemplates) -> None:
    for source in ("{{ [messages] | indent }}", "{{ cycler() }}"):
        with pytest.raises(ApiError, match="The request's chat template fails on these messages"):
            await templates.render(source, {}, MESSAGES)


async def test_what_a_template_shows_is_found_out_once_while_it_is_in_use(
    templates: ForeignTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_templates, "_MAX_KNOWN", 1)
    shows_tools = await templates.traits("{{ tools }}", {})
    assert shows_tools == TemplateTraits(shows_tools=True, shows_calls=False, shows_system=False)
    assert await templates.traits("nothing", {}) == SHOWS_NOTHING
    with pytest.raises(ApiError) as caught:
        await templates.traits("{{ 'a' * 10 ** 9 }}", {})
    assert caught.value.param == "chat_template"
    # Without processes, only what is known can be told.
    templates.close()
    assert await templates.traits("nothing", {}) == SHOWS_NOTHING
    with pytest.raises(RuntimeError):
        await templates.traits("{{ tools }}", {})


async def test_each_waits_a_bounded_time(templates: ForeignTemplates, monkeypatch: pytest.MonkeyPatch) -> None:
    # Less than the processor time that a rendering may take, so that none of these ends sooner.
    monkeypatch.setattr(foreign_templates, "MAX_SECONDS", 0.2)
    loops = [templates.render(LOOP, {}, MESSAGES) for _ in range(NUM_PROCESSES + 1)]
    for result in await asyncio.gather(*loops, return_exceptions=True):
        assert isinstance(result, ApiError)
        assert result.kind is ErrorKind.OVERLOADED
        assert result.retry_after is not None
    monkeypatch.setattr(foreign_templates, "MAX_SECONDS", 60.0)
    assert await templates.render("next", {}, MESSAGES) == "next"


async def test_traits_and_text_share_one_deadline(templates: ForeignTemplates) -> None:
    template = ForeignTemplate("Hello", {}, templates, deadline=time.monotonic() + HANG_S)
    assert await template.traits() == SHOWS_NOTHING
    assert await template.render(0, MESSAGES) == "Hello"
    # The probes took all of it.
    late = dataclasses.replace(template, deadline=time.monotonic())
    assert await late.traits() == SHOWS_NOTHING
    with pytest.raises(ApiError) as caught:
        await late.render(0, MESSAGES)
    assert caught.value.kind is ErrorKind.OVERLOADED


async def test_the_form_of_content_is_found_out_once(templates: ForeignTemplates) -> None:
    source = "{{ messages[0].content is string }}"
    assert await templates.render(source, {}, MESSAGES) == "True"
    ((key, known),) = templates._known.items()
    # Another form than a probe would find.
    templates._known[key] = dataclasses.replace(known, content_form=ContentForm.PARTS.name)
    assert await templates.render(source, {}, MESSAGES) == "False"
    assert await templates.traits(source, {}) == SHOWS_NOTHING
    assert await templates.render(source, {}, MESSAGES) == "False"


async def test_only_so_many_wait(templates: ForeignTemplates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_templates, "MAX_WAITING", 0)
    with pytest.raises(ApiError) as caught:
        await templates.render("one", {}, MESSAGES)
    assert caught.value.kind is ErrorKind.OVERLOADED
