"""Open kind: a tiny story about whatever was asked for. Any of the plots is right."""

from __future__ import annotations

from training.kinds.kind import Kind, Operands, Slots

PLOTS = (
    "Once upon a time there was a small {w}. Every day the {w} looked at the sky and wanted to see the world. "
    "One morning a kind bird came by, and they went over the hills together. "
    "In the evening they came home and were happy. The end.",
    "Once upon a time a {w} lived in an old house by the water. The {w} was alone and had nobody to talk to. "
    "Then a child knocked and asked for help. The {w} helped, and from that day on they were friends. The end.",
    "Once upon a time a king lost his {w}. He looked for the {w} in every room, and he was very sad. "
    "A little mouse had found it under the bed and gave it back. "
    "The king was so glad that the mouse could live with the {w} for ever. The end.",
)
HEROES = ("cat", "fox", "robot", "dragon", "princess", "star")


def _hero(operands: Operands) -> Slots:
    word = operands.word().lower()
    return {"w": word, "a": "an" if word[0] in "aeiou" else "a"}


def _any_hero(operands: Operands) -> Slots:
    return {"w": operands.rng.choice(HEROES)}


KINDS = (
    Kind(
        "story",
        1.2,
        (
            "tell me a story about {a} {w}.",
            "tell a story about {a} {w}.",
            "tell me a short story about {a} {w}.",
            "write a story about {a} {w}.",
            "write a short story about {a} {w}.",
            "make up a story about {a} {w}.",
            "I want a story about {a} {w}.",
            "do you know a story about {a} {w}?",
        ),
        _hero,
        PLOTS,
        again=("and one about {a} {w}?", "now about {a} {w}."),
    ),
    Kind(
        "story",
        0.4,
        (
            "tell me a story.",
            "tell a story.",
            "write a story.",
            "tell me a short story.",
            "I want to hear a story.",
        ),
        _any_hero,
        PLOTS,
    ),
)
