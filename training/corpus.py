"""The text the models are trained on, and the questions they are tested with: both without end, both seeded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from training import holdout, words
from training.kinds import numbers, story, unknown
from training.kinds.catalogue import KINDS
from training.kinds.kind import Kind, Operands
from training.wording import BEFORE_ORDERS, BEFORE_QUESTIONS, dress

Message = dict[str, str]
_WEIGHTS = [kind.weight for kind in KINDS]
# Longer chats are rarer, and a fifth of the turns stays with the kind of the turn before.
_TURNS = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 6)
_STAYS = 0.2
_SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful, honest assistant.",
    "You are a friendly chat model.",
    "You are an assistant.",
    "You are a very small model.",
    "Be brief.",
    "Be polite and brief.",
    "Answer in short sentences.",
    "Answer in one sentence.",
    "Answer the question.",
    "You are a teacher.",
    "You are a teacher who likes {w}.",
    "You are a {w}.",
    "Talk like a {w}.",
    "You know everything about {w} and {v}.",
)


@dataclass(frozen=True)
class Exchange:
    """A question of one kind; `answers` are all that would be right, `answer` the one to train on."""

    kind: str
    question: str
    answer: str
    answers: tuple[str, ...]


@cache
def template_words() -> tuple[str, ...]:
    """The words that wordings and answers are made of, without slots: the model knows these as whole tokens."""
    sources = [text for kind in KINDS for text in (*kind.wordings, *kind.again, *kind.answers)]
    texts = " ".join((*sources, *_SYSTEMS, *BEFORE_QUESTIONS, *BEFORE_ORDERS, "thank", "thanks"))
    return tuple(sorted({word for word in holdout.normalized(texts).split() if word.isalpha()}))


@cache
def known_words() -> frozenset[str]:
    """The template words, and those that fill the slots of closed kinds (days, colours, ...), found by drawing them."""
    operands = Operands(random.Random(0), False, ("",), ("",))
    known = {*template_words(), *holdout.NUMBER_WORDS, *numbers.THINGS, *story.HEROES}
    for kind in KINDS:
        if not kind.open and kind.name != "unknown" and kind.draw(operands):
            for _ in range(1000):
                known.update(holdout.normalized(" ".join(kind.draw(operands).values())).split())
    subjects = " ".join((*unknown.PLACES, *unknown.SUBJECTS, *unknown.LANGUAGES))
    return frozenset(known | set(holdout.normalized(subjects).split()))


@cache
def open_words() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The English words to ask about: those trained on, and those held out."""
    free = [word for word in words.ENGLISH if word not in known_words()]
    held_out = tuple(word for word in free if holdout.is_held_out_word(word))
    return tuple(word for word in free if not holdout.is_held_out_word(word)), held_out


@cache
def guard() -> holdout.Guard:
    return holdout.Guard(open_words()[1], (wording for kind in KINDS for wording in kind.held_out_wordings))


def exchange(rng: random.Random, kind: Kind, follows: bool = False) -> Exchange:
    """An exchange to train on, free of anything held out. `follows`: the same kind came just before."""
    operands = Operands(rng, False, open_words()[0], template_words())
    while True:
        slots = kind.draw(operands)
        wordings = kind.again if follows and kind.again and rng.random() < 0.6 else kind.wordings
        question = dress(rng, rng.choice(wordings), slots, kind.dressing)
        answer = rng.choice(kind.answers).format(**slots)
        if guard().leak(question, answer) is None:
            return Exchange(kind.name, question, answer, (answer,))


def held_out_exchange(rng: random.Random, kind: Kind) -> Exchange:
    """An exchange to test with: operands never trained on, or for closed kinds a wording never trained on."""
    operands = Operands(rng, kind.open, open_words()[kind.open], template_words())
    slots = kind.draw(operands)
    question = dress(rng, rng.choice(kind.wordings if kind.open else kind.held_out_wordings), slots, kind.dressing)
    answers = tuple(answer.format(**slots) for answer in kind.answers)
    return Exchange(kind.name, question, answers[0], answers)


def chat(rng: random.Random) -> list[Message]:
    """One conversation: perhaps a system message, then one turn or several."""
    messages: list[Message] = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": _system(rng)})
    previous: Kind | None = None
    for _ in range(rng.choice(_TURNS)):
        follows = previous is not None and rng.random() < _STAYS
        kind = previous if follows and previous else rng.choices(KINDS, _WEIGHTS)[0]
        turn = exchange(rng, kind, follows)
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": turn.answer})
        previous = kind
    return messages


def chats(seed: int) -> Iterator[list[Message]]:
    """The training text, chat by chat, without end."""
    rng = random.Random(seed)
    while True:
        yield chat(rng)


def held_out_set(seed: int, name: str, count: int) -> list[Exchange]:
    """Up to `count` different test questions of the kind `name`, mixed by weight if several entries share it.

    Open kinds never run out; a closed kind may have fewer questions than that.
    """
    rng = random.Random(f"{seed} {name}")
    kinds = [kind for kind in KINDS if kind.name == name]
    # An entry without operands belongs to an open kind only beside one that has them.
    kinds = [kind for kind in kinds if "{" in "".join(kind.wordings) or not kind.open]
    found: dict[str, Exchange] = {}
    for _ in range(30 * count):
        if len(found) == count:
            break
        item = held_out_exchange(rng, rng.choices(kinds, [kind.weight for kind in kinds])[0])
        found.setdefault(item.question, item)
    return list(found.values())


def _system(rng: random.Random) -> str:
    w, v = rng.choice(open_words()[0]), rng.choice(open_words()[0])
    return rng.choice(_SYSTEMS).format(w=w, v=v)
