"""Closed kinds: days, months, colours, opposites, animals and the alphabet. Their wordings are held out."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

from training.kinds.kind import Kind, Operands, Slots, quoted

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July",
    "August", "September", "October", "November", "December",
)  # fmt: skip
DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
MIXTURES = (
    ("red", "yellow", "orange"),
    ("red", "blue", "purple"),
    ("blue", "yellow", "green"),
    ("red", "white", "pink"),
    ("black", "white", "grey"),
    ("red", "green", "brown"),
)
COLOURS = (
    ("the sky", "The sky is", "blue"),
    ("the sea", "The sea is", "blue"),
    ("the sun", "The sun is", "yellow"),
    ("grass", "Grass is", "green"),
    ("a leaf", "A leaf is", "green"),
    ("snow", "Snow is", "white"),
    ("milk", "Milk is", "white"),
    ("coal", "Coal is", "black"),
    ("the night", "The night is", "black"),
    ("blood", "Blood is", "red"),
    ("a tomato", "A tomato is", "red"),
    ("a banana", "A banana is", "yellow"),
    ("a lemon", "A lemon is", "yellow"),
    ("a carrot", "A carrot is", "orange"),
    ("chocolate", "Chocolate is", "brown"),
    ("an elephant", "An elephant is", "grey"),
)
OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("left", "right"), ("open", "closed"), ("fast", "slow"),
    ("day", "night"), ("old", "new"), ("full", "empty"), ("light", "dark"), ("happy", "sad"), ("good", "bad"),
    ("long", "short"), ("high", "low"), ("wet", "dry"), ("loud", "quiet"), ("easy", "hard"), ("yes", "no"),
)  # fmt: skip
ANIMALS = (
    ("cow", "moo"), ("cat", "meow"), ("dog", "woof"), ("duck", "quack"), ("sheep", "baa"), ("pig", "oink"),
    ("lion", "roar"), ("bee", "buzz"), ("frog", "croak"), ("owl", "hoot"),
)  # fmt: skip


def _neighbours(ring: Sequence[str], step: int, wraps: bool = True) -> Callable[[Operands], Slots]:
    places = range(len(ring)) if wraps else range(max(0, -step), len(ring) - max(0, step))

    def draw(operands: Operands) -> Slots:
        i = operands.rng.choice(places)
        return {"x": ring[i], "y": ring[(i + step) % len(ring)]}

    return draw


def _letter(step: int) -> Callable[[Operands], Slots]:
    neighbour = _neighbours(string.ascii_lowercase, step, wraps=False)

    def draw(operands: Operands) -> Slots:
        slots = neighbour(operands)
        return slots | {"q": quoted(operands.rng, slots["x"])}

    return draw


def _month_length(operands: Operands) -> Slots:
    i = operands.rng.randrange(12)
    return {"x": MONTHS[i], "n": str(DAYS_IN_MONTH[i])}


def _mixture(operands: Operands) -> Slots:
    x, y, z = operands.rng.choice(MIXTURES)
    if operands.rng.random() < 0.5:
        x, y = y, x
    return {"x": x, "y": y, "X": x.capitalize(), "z": z}


def _colour(operands: Operands) -> Slots:
    thing, claim, colour = operands.rng.choice(COLOURS)
    return {"x": thing, "claim": claim, "z": colour}


def _opposite(operands: Operands) -> Slots:
    x, y = operands.rng.choice(OPPOSITES)
    if operands.rng.random() < 0.5:
        x, y = y, x
    return {"x": x, "q": quoted(operands.rng, x), "y": y}


def _animal(operands: Operands) -> Slots:
    animal, sound = operands.rng.choice(ANIMALS)
    return {
        "x": animal,
        "a": "an" if animal[0] in "aeiou" else "a",
        "A": "An" if animal[0] in "aeiou" else "A",
        "y": sound,
    }


def _cycle(name: str, weight: float, unit: str, ring: Sequence[str]) -> tuple[Kind, Kind]:
    """The kinds that ask what follows and what precedes in days or months."""
    after = Kind(
        f"{name} after",
        weight,
        (
            f"what {unit} comes after {{x}}?",
            f"what {unit} is after {{x}}?",
            f"what's the {unit} after {{x}}?",
            f"which {unit} comes after {{x}}?",
            f"which {unit} is next after {{x}}?",
            f"what {unit} follows {{x}}?",
            f"which {unit} is the one after {{x}}?",
            "what comes after {x}?",
            "what follows {x}?",
            f"name the {unit} after {{x}}.",
            f"tell me the {unit} that comes after {{x}}.",
            f"give me the {unit} following {{x}}.",
            f"after {{x}} comes which {unit}?",
            f"if this {unit} is {{x}}, what {unit} is next?",
        ),
        _neighbours(ring, 1),
        (f"The {unit} after {{x}} is {{y}}.",),
        (
            f"which {unit} follows {{x}}?",
            f"what is the {unit} after {{x}}?",
            f"tell me which {unit} is after {{x}}.",
            f"name the {unit} that follows {{x}}.",
            f"what is the next {unit} after {{x}}?",
        ),
        again=("and after {x}?", "what about {x}?", "and {x}?"),
    )
    before = Kind(
        f"{name} before",
        weight,
        (
            f"what {unit} comes before {{x}}?",
            f"what {unit} is before {{x}}?",
            f"what's the {unit} before {{x}}?",
            f"which {unit} comes before {{x}}?",
            f"which {unit} is just before {{x}}?",
            f"what {unit} precedes {{x}}?",
            f"which {unit} is the one before {{x}}?",
            "what comes before {x}?",
            f"name the {unit} before {{x}}.",
            f"tell me the {unit} that comes before {{x}}.",
            f"before {{x}} comes which {unit}?",
            f"if this {unit} is {{x}}, what {unit} was before?",
        ),
        _neighbours(ring, -1),
        (f"The {unit} before {{x}} is {{y}}.",),
        (
            f"what is the {unit} before {{x}}?",
            f"tell me which {unit} is before {{x}}.",
            f"which {unit} precedes {{x}}?",
            f"name the {unit} that comes before {{x}}.",
        ),
        again=("and before {x}?", "what about {x}?", "and {x}?"),
    )
    return after, before


KINDS = (
    *_cycle("day", 0.8, "day", DAYS),
    *_cycle("month", 1.0, "month", MONTHS),
    Kind(
        "days in a month",
        0.8,
        (
            "how many days are in {x}?",
            "how many days are there in {x}?",
            "how many days has {x}?",
            "how many days does the month of {x} have?",
            "how long is {x}?",
            "how long is the month of {x}?",
            "what is the number of days in {x}?",
            "tell me how many days {x} has.",
            "tell me the number of days in {x}.",
        ),
        _month_length,
        ("{x} has {n} days.",),
        (
            "how many days does {x} have?",
            "how many days are in the month of {x}?",
            "tell me how many days there are in {x}.",
            "how many days long is {x}?",
        ),
        again=("and {x}?", "what about {x}?", "and in {x}?"),
    ),
    Kind(
        "mixing colours",
        2.0,
        (
            "what do {x} and {y} make?",
            "what colour do {x} and {y} make?",
            "what color do {x} and {y} make?",
            "what do you get if you mix {x} and {y}?",
            "what colour do you get from {x} and {y}?",
            "what color do you get from {x} and {y}?",
            "which colour comes from {x} and {y}?",
            "which color do you get by mixing {x} and {y}?",
            "mix {x} and {y}.",
            "mix {x} with {y}.",
            "what is {x} plus {y}?",
            "if I mix {x} and {y}, what colour do I get?",
            "if I mix {x} paint with {y} paint, what do I get?",
            "tell me what {x} and {y} make.",
            "tell me what colour {x} and {y} make.",
            "tell me what you get by mixing {x} and {y}.",
            "tell me which color you get if you mix {x} and {y}.",
            "what happens if you mix {x} and {y}?",
            "what happens when I mix {x} with {y}?",
            "what do I get if I mix {x} with {y}?",
            "what color do I get if I mix {x} and {y}?",
            "which colour do {x} and {y} make?",
            "what do {x} and {y} make together?",
            "what is {x} mixed with {y}?",
            "what colour is {x} and {y} together?",
        ),
        _mixture,
        ("{X} and {y} make {z}.",),
        (
            "what colour do I get if I mix {x} and {y}?",
            "what color is {x} mixed with {y}?",
            "what happens if I mix {x} with {y}?",
            "which colour do {x} and {y} make together?",
            "tell me the colour you get by mixing {x} and {y}.",
        ),
        again=("and {x} and {y}?", "what about {x} and {y}?"),
    ),
    Kind(
        "colours of things",
        1.8,
        (
            "what colour is {x}?",
            "what color is {x}?",
            "what is the colour of {x}?",
            "what is the color of {x}?",
            "what's the colour of {x}?",
            "which color is {x}?",
            "which colour has {x}?",
            "tell me the colour of {x}.",
            "name the color of {x}.",
            "in what colour would you paint {x}?",
            "tell me which color {x} has.",
            "tell me which colour {x} is.",
            "say what colour {x} is.",
            "say what color {x} is.",
            "what color has {x}?",
            "what color does {x} have?",
            "which colour does {x} have?",
            "is {x} red or blue?",
            "is {x} white or green?",
        ),
        _colour,
        ("{claim} {z}.",),
        (
            "which colour is {x}?",
            "what's the color of {x}?",
            "tell me what colour {x} is.",
            "tell me the color of {x}.",
        ),
        again=("and {x}?", "what about {x}?"),
    ),
    Kind(
        "opposites",
        5.0,
        (
            "what is the opposite of {q}?",
            "what's the opposite of {q}?",
            "which word is the opposite of {q}?",
            "which word means the opposite of {q}?",
            "give me the opposite of {q}.",
            "name the opposite of {q}.",
            "what word is the opposite of the word {q}?",
            "what is not {q}?",
            "opposite of {q}?",
            "tell me what the opposite of {q} is.",
            "tell me which word is the opposite of {q}.",
            "tell me a word that means the opposite of {q}.",
            "what word is the opposite of {q}?",
            "what is the word for the opposite of {q}?",
            "the opposite of {q}?",
            "do you know the opposite of {q}?",
            "what means the opposite of {q}?",
            "say the opposite of {q}.",
            "what is the opposite of being {q}?",
        ),
        _opposite,
        ('The opposite of "{x}" is "{y}".',),
        (
            "tell me the opposite of {x}.",
            "what word means the opposite of {x}?",
            "what is the opposite of the word {x}?",
            "do you know what the opposite of {x} is?",
        ),
        again=("and of {q}?", "and {q}?", "what about {q}?"),
    ),
    Kind(
        "animal sounds",
        1.5,
        (
            "what does {a} {x} say?",
            "what does the {x} say?",
            "what sound does {a} {x} make?",
            "which sound does {a} {x} make?",
            "what noise comes from the {x}?",
            "which noise does {a} {x} make?",
            "how does {a} {x} sound?",
            "what does {a} {x} sound like?",
            "make the sound of {a} {x}.",
            "tell me what {a} {x} says.",
            "tell me what the {x} says.",
            "tell me how {a} {x} sounds.",
            "tell me how the {x} sounds.",
            "tell me the sound of {a} {x}.",
            "tell me which sound {a} {x} makes.",
            "tell me what noise the {x} makes.",
            "what is the sound of {a} {x}?",
            "what does the {x} sound like?",
            "what sound comes from {a} {x}?",
            "which sound does the {x} make?",
            "what noise do you hear from {a} {x}?",
            "what do you hear from the {x}?",
            "say what {a} {x} says.",
        ),
        _animal,
        ('{A} {x} says "{y}".',),
        (
            "what sound does the {x} make?",
            "what noise does {a} {x} make?",
            "tell me what sound {a} {x} makes.",
            "how does the {x} sound?",
        ),
        again=("and {a} {x}?", "what about {a} {x}?", "and the {x}?"),
    ),
    Kind(
        "letter after",
        0.8,
        (
            "what letter comes after {q}?",
            "which letter comes after {q}?",
            "what letter is after {q}?",
            "what is the next letter after {q}?",
            "which letter follows {q} in the alphabet?",
            "what comes after the letter {q}?",
            "name the letter after {q}.",
            "tell me the letter that comes after {q}.",
        ),
        _letter(1),
        ("The letter after {x} is {y}.",),
        (
            "what is the letter after {x}?",
            "which letter is after {x}?",
            "in the alphabet, what letter follows {x}?",
            "tell me which letter comes after {x}.",
        ),
        again=("and after {q}?",),
    ),
    Kind(
        "letter before",
        0.8,
        (
            "what letter comes before {q}?",
            "which letter comes before {q}?",
            "what letter is before {q}?",
            "which letter precedes {q} in the alphabet?",
            "what comes before the letter {q}?",
            "name the letter before {q}.",
            "tell me the letter that comes before {q}.",
        ),
        _letter(-1),
        ("The letter before {x} is {y}.",),
        (
            "what is the letter before {x}?",
            "which letter is before {x}?",
            "in the alphabet, what letter precedes {x}?",
            "tell me which letter comes before {x}.",
        ),
        again=("and before {q}?",),
    ),
)
