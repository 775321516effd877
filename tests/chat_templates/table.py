"""Compares the router's prompts with those of transformers' `apply_chat_template`, template by template.

`python -m tests.chat_templates.table [DIRECTORY ...]` prints the table, with the templates of the directories in it.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from services.router.chat.forms import FormChoice
from services.router.chat.plan import plan_chat
from services.router.chat.request import ChatRequest
from services.router.errors import ApiError
from services.router.generation.options import GenerationOptions
from services.router.model import ModelInfo, ServedModel
from services.router.parameters.sampling import SamplingParams, StopConditions
from services.router.text.threads import TextThreads
from services.router.text.tokenizer import Tokenizer
from tests.chat_templates.conversations import CONVERSATIONS, Conversation
from tests.chat_templates.published import Source, distinct, in_directory, ours, published
from tests.integration.router.small_tokenizers import byte_level

_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# A text part as Python or as JSON prints it.
_PARTS = re.compile(r"""(['"])type\1: \1text\1""")


class Outcome(Enum):
    SAME = "same"
    ADDED = "added"
    PLAIN = "plain"
    TEXT = "text"
    REFUSED = "refused"
    LACKS = "lacks"
    DIFFERS = "DIFFERS"


_MEANINGS = {
    Outcome.SAME: "The two prompts are equal.",
    Outcome.ADDED: "Theirs lacks something of the conversation that ours has, or fails.",
    Outcome.PLAIN: "Theirs has the tools in a form that the router has no parser for. Ours describes them in a text.",
    Outcome.TEXT: "Theirs prints a list of parts as a value. Ours has its text.",
    Outcome.REFUSED: "The template refuses the conversation.",
    Outcome.LACKS: "The two are equal, and the template leaves out something of the conversation.",
    Outcome.DIFFERS: "None of these: a fault.",
}


def compare(source: Source, threads: TextThreads) -> dict[str, Outcome]:
    """By the names of CONVERSATIONS."""
    config = json.dumps({"chat_template": source, **_TOKENS}).encode()
    tokenizer = Tokenizer(byte_level().to_str().encode(), config, threads)
    info = ModelInfo("m", (), 1 << 20, 512, frozenset({2}), SamplingParams(), "", 0, "", "")
    model = ServedModel(info, tokenizer, 0)
    return {name: _outcome(source, model, given) for name, given in CONVERSATIONS.items()}


def _outcome(source: Source, model: ServedModel, given: Conversation) -> Outcome:
    ours, theirs = asyncio.run(_ours(model, given)), _theirs(source, given)
    if ours is None:
        return Outcome.REFUSED if theirs is None else Outcome.DIFFERS
    shown = _shown(ours, given)
    if ours == theirs:
        return Outcome.SAME if len(shown) == len(given.words) else Outcome.LACKS
    if theirs is None or _shown(theirs, given) < shown:
        return Outcome.ADDED
    if not _shown(theirs, given) <= shown:
        return Outcome.DIFFERS
    if given.tools and _is_plain(model, source):
        return Outcome.PLAIN
    return Outcome.TEXT if _PARTS.search(theirs) and not _PARTS.search(ours) else Outcome.DIFFERS


def _is_plain(model: ServedModel, source: Source) -> bool:
    sources = [source] if isinstance(source, str) else [entry["template"] for entry in source]
    form = FormChoice().of("").tools
    return any(FormChoice().of(text).tools is form for text in sources)


def _shown(text: str, given: Conversation) -> set[str]:
    return {word for word in given.words if word in text}


async def _ours(model: ServedModel, given: Conversation) -> str | None:
    request = ChatRequest(
        model=None,
        messages=copy.deepcopy(list(given.messages)),
        options=GenerationOptions(SamplingParams(), StopConditions()),
        tools=given.tools,
    )
    try:
        turn = await plan_chat(request, model, FormChoice())
        assert turn.template is not None
        arguments = {"messages": turn.messages, "tools": turn.template_tools, "add_generation_prompt": True}
        return await turn.template.render(0, arguments)
    except ApiError:
        return None


def _theirs(source: Source, given: Conversation) -> str | None:
    from transformers import PreTrainedTokenizerFast

    template = source if isinstance(source, str) else {entry["name"]: entry["template"] for entry in source}
    tokenizer_class: Any = PreTrainedTokenizerFast
    tokenizer = tokenizer_class(tokenizer_object=byte_level(), chat_template=template, **_TOKENS)
    try:
        text = tokenizer.apply_chat_template(
            [_with_objects(message) for message in given.messages],
            tools=[tool.to_template() for tool in given.tools] or None,
            tokenize=False,
            add_generation_prompt=True,
        )
    except Exception:  # a template raises what it likes
        return None
    return str(text)


def _with_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    """transformers wants a call's arguments as an object."""
    copied = copy.deepcopy(dict(message))
    for call in copied.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return copied


def markdown(rows: Mapping[str, Mapping[str, Outcome]]) -> str:
    def line(name: str, cells: Sequence[str]) -> str:
        return f"| {name} | {' | '.join(cells)} |"

    lines = [line("template", list(CONVERSATIONS)), line("---", ["---"] * len(CONVERSATIONS))]
    lines += [line(name, [outcome.value for outcome in row.values()]) for name, row in rows.items()]
    lines += ["", *(f"- {outcome.value}: {meaning}" for outcome, meaning in _MEANINGS.items())]
    return "\n".join(lines)


def summary(rows: Mapping[str, Mapping[str, Outcome]]) -> str:
    """How many prompts have each outcome."""
    counts = Counter(outcome for row in rows.values() for outcome in row.values())
    parts = [f"{outcome.value} {counts[outcome]}" for outcome in Outcome]
    return f"{len(rows)} published templates, {counts.total()} prompts: {', '.join(parts)}"


def main() -> None:
    shared = published()
    for directory in sys.argv[1:]:
        shared |= in_directory(Path(directory))
    shared = distinct(shared)
    threads = TextThreads(1)
    rows = {name: compare(source, threads) for name, source in (ours() | shared).items()}
    threads.close()
    print(markdown(rows))
    if shared:
        print(f"\n{summary({name: rows[name] for name in shared})}")
    if any(Outcome.DIFFERS in row.values() for row in rows.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
