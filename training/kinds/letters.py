"""Spelling, reversing, echoing and taking words apart."""

from __future__ import annotations

from training.kinds.kind import Dressing, Kind, Operands, Slots, quoted


def _word(operands: Operands) -> Slots:
    word = operands.word()
    return {
        "word": quoted(operands.rng, word),
        "plain": word,
        "spelled": "-".join(word),
        "reversed": word[::-1],
        "upper": word.upper(),
        "length": str(len(word)),
        "first": word[0],
        "last": word[-1],
    }


def _phrase(operands: Operands) -> Slots:
    rng = operands.rng
    count = rng.choice((1, 1, 2, 2, 3)) if operands.held_out else rng.choice((1, 1, 1, 2, 2, 3, 4))
    phrase = " ".join(operands.word() for _ in range(count))
    return {"phrase": phrase, "quoted": f'"{phrase}"'}


KINDS = (
    Kind(
        "spelling",
        3.5,
        (
            "spell {word}.",
            "spell the word {word}.",
            "spell out {word}.",
            "spell {word} for me.",
            "how do you spell {word}?",
            "how do I spell {word}?",
            "how is {word} spelled?",
            "how is the word {word} spelled?",
            "how do you write the word {word}?",
            "what is the spelling of {word}?",
            "what are the letters of {word}?",
            "what are the letters in the word {word}?",
            "give me the letters of {word}.",
            "write {word} letter by letter.",
            "tell me how to spell {word}.",
            "tell me how {word} is spelled.",
        ),
        _word,
        ('The word "{plain}" is spelled {spelled}.',),
        again=("and {word}?", "what about {word}?", "now {word}.", "{word}?"),
    ),
    Kind(
        "reversing",
        5.0,
        (
            "reverse {word}.",
            "reverse the word {word}.",
            "reverse the letters of {word}.",
            "spell {word} backwards.",
            "write {word} backwards.",
            "write the word {word} backwards.",
            "say {word} backwards.",
            "turn {word} around.",
            "turn the word {word} around.",
            "what is {word} backwards?",
            "what is {word} reversed?",
            "what's {word} backwards?",
            "what is {word} spelled backwards?",
            "what is the reverse of {word}?",
            "how do you spell {word} backwards?",
            "how is {word} written backwards?",
            "give me {word} in reverse.",
            "read {word} from right to left.",
        ),
        _word,
        ('Reversed, "{plain}" is "{reversed}".',),
        again=("and {word}?", "what about {word}?", "now {word}.", "{word}?"),
    ),
    Kind(
        "echoing",
        4.0,
        (
            "repeat after me: {phrase}.",
            "repeat this: {phrase}.",
            "repeat {quoted}.",
            "repeat the words {quoted}.",
            "repeat: {phrase}.",
            "say {quoted}.",
            "say: {phrase}.",
            "say {phrase}.",
            "say this: {phrase}.",
            "say the words {phrase}.",
            "echo {phrase}.",
            "echo {quoted}.",
            "echo: {phrase}.",
            "echo this: {phrase}.",
            "copy this: {phrase}.",
            "what did I say? I said {quoted}.",
            "I say {quoted}. What do I say?",
        ),
        _phrase,
        ('You said: "{phrase}".',),
        again=("and {quoted}.", "now {quoted}.", "now say {phrase}."),
        dressing=Dressing.OPEN_END,
    ),
    Kind(
        "counting letters",
        2.0,
        (
            "how many letters are in {word}?",
            "how many letters are there in {word}?",
            "how many letters are in the word {word}?",
            "how many letters does {word} have?",
            "how many letters does the word {word} have?",
            "how long is the word {word}?",
            "what is the length of the word {word}?",
            "count the letters in {word}.",
            "count the letters of the word {word}.",
            "tell me how many letters {word} has.",
        ),
        _word,
        ('The word "{plain}" has {length} letters.',),
        again=("and {word}?", "what about {word}?", "and in {word}?"),
    ),
    Kind(
        "first letter",
        1.0,
        (
            "what is the first letter of {word}?",
            "what's the first letter of {word}?",
            "what is the first letter in the word {word}?",
            "which letter does {word} start with?",
            "which letter does the word {word} begin with?",
            "what letter does {word} start with?",
            "which letter comes first in {word}?",
            "tell me the first letter of {word}.",
            "give me the first letter of the word {word}.",
        ),
        _word,
        ('The first letter of "{plain}" is {first}.',),
        again=("and of {word}?", "and {word}?"),
    ),
    Kind(
        "last letter",
        1.0,
        (
            "what is the last letter of {word}?",
            "what's the last letter of {word}?",
            "what is the last letter in the word {word}?",
            "which letter does {word} end with?",
            "which letter does the word {word} end in?",
            "what letter does {word} end with?",
            "which letter comes last in {word}?",
            "tell me the last letter of {word}.",
            "give me the last letter of the word {word}.",
        ),
        _word,
        ('The last letter of "{plain}" is {last}.',),
        again=("and of {word}?", "and {word}?"),
    ),
    Kind(
        "capital letters",
        2.0,
        (
            "write {word} in capital letters.",
            "write {word} in capitals.",
            "write the word {word} in upper case.",
            "put {word} in capital letters.",
            "put the word {word} in capitals.",
            "make {word} upper case.",
            "what is {word} in capital letters?",
            "what is {word} in upper case?",
            "how does {word} look in capital letters?",
            "say {word} in capital letters.",
        ),
        _word,
        ('In capital letters, "{plain}" is "{upper}".',),
        again=("and {word}?", "now {word}."),
    ),
)
