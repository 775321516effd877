"""What a template shows is found by rendering a probe, and read from its source where it refuses one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.router.template.chat_template import ChatTemplate
from services.router.template.content import ContentForm, content_form
from services.router.template.probe import TemplateTraits
from tests.chat_templates.published import ours
from tests.fakes.waiting import HANG_S

ROOT = Path(__file__).parents[3]

ALL = TemplateTraits(shows_tools=True, shows_calls=True, shows_system=True)
PROBED = {
    "calls_from_content": (ContentForm.STRING, ALL),
    "calls_left_out": (ContentForm.STRING, TemplateTraits(True, False, False)),
    "other_variables": (ContentForm.STRING, TemplateTraits(False, False, True)),
    "system_left_out": (ContentForm.STRING, TemplateTraits(True, False, False)),
    "tools_of_messages": (ContentForm.STRING, TemplateTraits(False, False, True)),
    "strict_turns": (ContentForm.STRING, TemplateTraits(False, False, False)),
    "wants_system": (ContentForm.PARTS, ALL),
    "either_content": (ContentForm.EITHER, ALL),
    "channels": (ContentForm.STRING, ALL),
    "needs_tools": (ContentForm.STRING, TemplateTraits(True, True, True, needs_tools=True)),
}


@pytest.mark.parametrize("name", PROBED)
def test_a_probe_tells_what_a_template_shows(name: str) -> None:
    source = ours()[name]
    assert isinstance(source, str)
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert (template.form_of_content, template.traits) == PROBED[name]


def test_a_probe_tells_what_a_template_does_not_do_with() -> None:
    for name in PROBED:
        template = ChatTemplate(str(ours()[name]), {})
        found = template._thinks_or_speaks, template._shows_one_call, template._wants_descriptions
        assert found == ((name == "channels"),) * 3, name


@pytest.mark.parametrize(
    ("source", "form", "takes_tools", "takes_calls"),
    [
        ("{{ messages[0].content }}", ContentForm.STRING, False, False),
        ("{% for part in messages[0].content %}{{ part.text }}{% endfor %}", ContentForm.PARTS, False, False),
        ("{% for tool in tools %}{{ tool }}{% endfor %}", ContentForm.STRING, True, False),
        ("{{ messages[0].tool_calls }}", ContentForm.STRING, False, True),
    ],
)
def test_a_template_that_refuses_the_probe_is_read(
    source: str, form: ContentForm, takes_tools: bool, takes_calls: bool
) -> None:
    template = ChatTemplate("{{ raise_exception('no probes') }}" + source, {})
    assert template.form_of_content is form
    assert template.traits == TemplateTraits(takes_tools, takes_calls, shows_system=False)


def test_tools_are_shown_with_their_names_and_their_arguments() -> None:
    for shown, is_enough in (("name", False), ("parameters", False), ("name ~ tool.function.parameters", True)):
        template = ChatTemplate(f"{{% for tool in tools %}}{{{{ tool.function.{shown} }}}}{{% endfor %}}", {})
        assert template.traits.shows_tools is is_enough


def test_a_loop_over_calls_is_none_over_parts() -> None:
    loop = "{% set items = message.content %}{% for item in items %}{{ item.text }}{% endfor %}"
    assert content_form(loop) is ContentForm.PARTS
    assert content_form(loop.replace("item.text", "item.function")) is ContentForm.STRING
    assert content_form(loop.replace("item.text", "item['function']")) is ContentForm.STRING


def test_a_router_of_the_typed_api_alone_can_probe() -> None:
    """It runs without pydantic_core, also where a template refuses every form of the calls."""
    code = (
        "import sys\n"
        "sys.modules['pydantic_core'] = None\n"
        "from services.router.template.chat_template import ChatTemplate\n"
        'refuses = \'{% if messages[-1].role != "user" %}{{ raise_exception("no") }}{% endif %}{{ messages }}\'\n'
        "assert ChatTemplate(refuses, {}).warm() is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_S, cwd=ROOT)


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        # Filters that look for a method of a text: a probe's content is a list.
        ("{% for message in messages %}{{ message.content | indent(2) }}{% endfor %}", "Hi"),
        ("{% for message in messages %}{{ message.content | wordwrap(20) }}{% endfor %}", "Hi"),
        # An error of Python's own.
        ("{{ messages[-1].content }}{% if messages | length > 1 %}{{ cycler() }}{% endif %}", "Hi"),
    ],
)
def test_a_probe_raises_nothing_whatever_a_template_does(source: str, prompt: str) -> None:
    template = ChatTemplate(source, {})
    assert template.warm() is None
    assert template.render([{"role": "user", "content": "Hi"}]) == prompt
    assert not template.traits.shows_tools


def test_a_probe_raises_nothing_over_arguments_that_are_text() -> None:
    """One of the forms of a call has them as text, which has no items."""
    source = (
        "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls %}{{ call.function.name }}"
        "{% for key, value in call.function.arguments | dictsort %}{{ key }}{% endfor %}{% endfor %}"
        "{% if message.role == 'tool' %}{{ message.content + 1 }}{% endif %}{% endfor %}"
    )
    template = ChatTemplate(source, {})
    assert template.warm() is None
    assert template.traits == TemplateTraits(shows_tools=False, shows_calls=True, shows_system=True)
