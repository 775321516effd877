"""Sums, differences, comparing and counting, with numbers from 0 to 99."""

from __future__ import annotations

from training.holdout import NUMBER_WORDS
from training.kinds.kind import Kind, Operands, Slots

THINGS = (
    "apples",
    "pears",
    "books",
    "coins",
    "marbles",
    "cards",
    "eggs",
    "stickers",
    "flowers",
    "pencils",
)
LONGEST_COUNT = 25


def _sum(operands: Operands) -> Slots:
    a, b = operands.pair()
    return {
        "a": str(a),
        "b": str(b),
        "c": str(a + b),
        "things": operands.rng.choice(THINGS),
    }


def _sum_in_words(operands: Operands) -> Slots:
    a, b = operands.pair(top=20)
    return {
        "a": str(a),
        "b": str(b),
        "c": str(a + b),
        "aa": NUMBER_WORDS[a],
        "bb": NUMBER_WORDS[b],
    }


def _difference(operands: Operands) -> Slots:
    a, b = operands.pair(lambda a, b: a >= b)
    return {
        "a": str(a),
        "b": str(b),
        "c": str(a - b),
        "things": operands.rng.choice(THINGS),
    }


def _two_in_any_order(operands: Operands) -> Slots:
    a, b = operands.pair(lambda a, b: a != b)
    return {"a": str(a), "b": str(b), "low": str(min(a, b)), "high": str(max(a, b))}


def _span(operands: Operands) -> int:
    """The most numbers a count may have: often few, because only its end teaches when to stop."""
    return LONGEST_COUNT if operands.held_out or operands.rng.random() < 0.3 else 10


def _count_up(operands: Operands) -> Slots:
    span = _span(operands)
    a, b = operands.pair(lambda a, b: 0 < b - a < span)
    return {"a": str(a), "b": str(b), "list": ", ".join(map(str, range(a, b + 1)))}


def _count_from_one(operands: Operands) -> Slots:
    _, b = operands.pair(lambda a, b: a == 1 and 0 < b - a < LONGEST_COUNT)
    return {"a": "1", "b": str(b), "list": ", ".join(map(str, range(1, b + 1)))}


def _count_down(operands: Operands) -> Slots:
    span = _span(operands)
    a, b = operands.pair(lambda a, b: 0 < a - b < span)
    return {"a": str(a), "b": str(b), "list": ", ".join(map(str, range(a, b - 1, -1)))}


KINDS = (
    Kind(
        "sum",
        21.0,
        (
            "what is {a} plus {b}?",
            "what's {a} plus {b}?",
            "what is {a} + {b}?",
            "what's {a}+{b}?",
            "what is {a}+{b}?",
            "how much is {a} plus {b}?",
            "how much is {a} + {b}?",
            "what does {a} plus {b} equal?",
            "what does {a} plus {b} make?",
            "what do {a} and {b} make together?",
            "what is the sum of {a} and {b}?",
            "what do you get if you add {a} and {b}?",
            "add {a} and {b}.",
            "add {a} to {b}.",
            "add up {a} and {b}.",
            "add the numbers {a} and {b}.",
            "calculate {a} + {b}.",
            "calculate {a} plus {b}.",
            "compute {a} + {b}.",
            "work out {a} plus {b}.",
            "give me the sum of {a} and {b}.",
            "tell me {a} plus {b}.",
            "{a} + {b}?",
            "{a}+{b}?",
            "{a} plus {b}?",
            "{a} + {b} = ?",
            "{a}+{b}=?",
            "I have {a} {things} and get {b} more. How many {things} do I have?",
            "if I have {a} {things} and you give me {b}, how many {things} do I have?",
        ),
        _sum,
        ("{a} plus {b} is {c}.",),
        again=("{a} and {b}?", "what about {a} and {b}?", "and {a} plus {b}?"),
    ),
    Kind(
        "sum",
        2.0,
        (
            "what is {aa} plus {bb}?",
            "what's {aa} plus {bb}?",
            "how much is {aa} plus {bb}?",
            "{aa} plus {bb}?",
            "add {aa} and {bb}.",
            "what is the sum of {aa} and {bb}?",
        ),
        _sum_in_words,
        ("{a} plus {b} is {c}.",),
    ),
    Kind(
        "difference",
        20.0,
        (
            "what is {a} minus {b}?",
            "what's {a} minus {b}?",
            "what is {a} - {b}?",
            "what's {a}-{b}?",
            "how much is {a} minus {b}?",
            "how much is {a} - {b}?",
            "what does {a} minus {b} equal?",
            "what is {a} take away {b}?",
            "what is left if you take {b} from {a}?",
            "take {b} away from {a}.",
            "subtract {b} from {a}.",
            "calculate {a} - {b}.",
            "calculate {a} minus {b}.",
            "compute {a} - {b}.",
            "work out {a} minus {b}.",
            "tell me {a} minus {b}.",
            "{a} - {b}?",
            "{a}-{b}?",
            "{a} minus {b}?",
            "{a} - {b} = ?",
            "I have {a} {things} and give away {b}. How many {things} are left?",
            "if I have {a} {things} and lose {b}, how many {things} do I have?",
        ),
        _difference,
        ("{a} minus {b} is {c}.",),
        again=("and {a} minus {b}?", "what about {a} minus {b}?"),
    ),
    Kind(
        "larger number",
        5.0,
        (
            "which is larger, {a} or {b}?",
            "which is bigger, {a} or {b}?",
            "which is greater: {a} or {b}?",
            "which number is larger, {a} or {b}?",
            "which number is bigger, {a} or {b}?",
            "what is larger, {a} or {b}?",
            "what is more, {a} or {b}?",
            "tell me the larger of {a} and {b}.",
            "name the bigger number: {a} or {b}.",
            "is {a} or {b} larger?",
            "is {a} or {b} bigger?",
        ),
        _two_in_any_order,
        ("{high} is larger than {low}.",),
    ),
    Kind(
        "smaller number",
        4.0,
        (
            "which is smaller, {a} or {b}?",
            "which is less, {a} or {b}?",
            "which number is smaller, {a} or {b}?",
            "which number is less: {a} or {b}?",
            "what is smaller, {a} or {b}?",
            "tell me the smaller of {a} and {b}.",
            "name the smaller number: {a} or {b}.",
            "is {a} or {b} smaller?",
        ),
        _two_in_any_order,
        ("{low} is smaller than {high}.",),
    ),
    Kind(
        "counting up",
        4.5,
        (
            "count from {a} to {b}.",
            "count up from {a} to {b}.",
            "count from {a} up to {b}.",
            "start at {a} and count to {b}.",
            "count the numbers from {a} to {b}.",
            "list the numbers from {a} to {b}.",
            "write the numbers from {a} to {b}.",
            "say all numbers between {a} and {b}.",
            "what are the numbers from {a} to {b}?",
            "which numbers come from {a} to {b}?",
        ),
        _count_up,
        ("Counting from {a} to {b}: {list}.",),
        again=("and from {a} to {b}?", "now from {a} to {b}."),
    ),
    Kind(
        "counting up",
        0.4,
        (
            "count to {b}.",
            "count up to {b}.",
            "count from one to {b}.",
            "list the first {b} numbers.",
        ),
        _count_from_one,
        ("Counting from {a} to {b}: {list}.",),
    ),
    Kind(
        "counting down",
        4.0,
        (
            "count down from {a} to {b}.",
            "count from {a} down to {b}.",
            "count backwards from {a} to {b}.",
            "start at {a} and count down to {b}.",
            "list the numbers from {a} down to {b}.",
            "do a countdown from {a} to {b}.",
            "what are the numbers from {a} down to {b}?",
        ),
        _count_down,
        ("Counting down from {a} to {b}: {list}.",),
    ),
)
