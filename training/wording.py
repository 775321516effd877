"""Puts a wording the way different people would: politely, hurriedly, in capitals or without."""

from __future__ import annotations

import random

from training.kinds.kind import Dressing

BEFORE_QUESTIONS = (
    "tell me, ", "please tell me, ", "please tell me: ", "hey, ", "hi, ", "hello, ", "hello! ", "so, ", "okay, ",
    "now, ",
    "and ", "then ", "quick question: ", "I want to know: ", "can you tell me: ", "can you tell me, ", "excuse me, ",
    "one question: ", "I have a question: ", "do you know, ",
)  # fmt: skip
BEFORE_ORDERS = (
    "please ", "please ", "please, ", "now ", "hey, ", "hello, ", "okay, ", "then ", "so, ", "I want you to ",
    "I would like you to ", "can you ", "can you please ", "could you ", "could you please ", "would you ",
)  # fmt: skip
_ASKS = ("can you", "could you", "would you")


def _careless(rng: random.Random, text: str) -> str:
    if rng.random() < 0.6:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.2:
        text = text.replace(",", "")
    return text.lower() if rng.random() < 0.1 else text


def dress(rng: random.Random, wording: str, slots: dict[str, str], dressing: Dressing) -> str:
    """The wording with its slots filled, and as much as `dressing` allows around it."""
    body, mark = wording[:-1], wording[-1]
    before = ""
    # "Could you I want a story" is no sentence.
    if dressing is not Dressing.NONE and not body.startswith("I ") and rng.random() < 0.4:
        before = rng.choice(BEFORE_QUESTIONS if mark == "?" else BEFORE_ORDERS)
        if before.startswith(_ASKS) and mark == ".":
            mark = "?"
    text = before + body
    if rng.random() < 0.8:
        text = text[0].upper() + text[1:]
    text = text.format(**slots)
    if dressing is Dressing.NONE:  # small talk, which may begin with a slot, and which people write carelessly
        text = _careless(rng, text)
    if dressing is Dressing.FULL and rng.random() < 0.12:
        text += rng.choice((", please", " please"))
    draw = rng.random()
    if draw < 0.15:
        mark = ""
    elif draw < 0.20:
        mark = {"?": "??", ".": "!"}[mark]
    elif draw < 0.22 and dressing is Dressing.FULL:
        mark = " " + mark
    text += mark
    if dressing is Dressing.FULL and mark and rng.random() < 0.04:
        text += rng.choice((" Thanks!", " Thank you.", " Thanks."))
    return text
