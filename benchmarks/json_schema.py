"""Tests which JSON schemas are supported: samples random outputs through the real matcher, and validates them.

`python -m benchmarks.json_schema SUITE` runs the JSON Schema Test Suite (its folder for draft 2020-12) and writes the
table in docs/structured-output.md. A schema is supported if `SAMPLES` sampled outputs are complete and valid. Every
other schema must be refused with an error; otherwise there is a bug, which the command prints.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import regex
from llguidance import LLMatcher, LLTokenizer

from services.router.grammar import Structure, StructureKind
from shared.grammar import GrammarError, compile_grammar, grammar_threads

_CLASSES = ((r"\w", "[A-Za-z0-9_]"), (r"\W", "[^A-Za-z0-9_]"), (r"\d", "[0-9]"), (r"\D", "[^0-9]"))


class _Ecma:
    """Replaces `re` in jsonschema, so that patterns have the meaning of ECMA 262, as JSON Schema requires."""

    @staticmethod
    def search(pattern: str, text: str) -> object:
        if "[" not in pattern:
            for escape, characters in _CLASSES:
                pattern = pattern.replace(escape, characters)
        return regex.search(pattern, text)


# The modules that search. They are private, so jsonschema's types do not list them.
jsonschema._keywords.re = jsonschema._utils.re = _Ecma  # type: ignore[attr-defined]
_FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER

SAMPLES = 5
# Maximum number of attempts per schema, and of tokens per attempt.
_MAX_ATTEMPTS = 200
_MAX_TOKENS = 600
# After this many tokens, closing quotes and brackets become more likely with each token, so that random text ends.
_PATIENCE = 20
_BEGIN, _END = "<!-- begin: written by benchmarks/json_schema.py -->", "<!-- end -->"
_CLOSERS = frozenset(b'"}]')


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one schema. `refusal`: the reason for the refusal. `invalid`: an output that violates the schema,
    which is a bug. `unfinished`: too few outputs were complete, which is also a bug."""

    refusal: str = ""
    invalid: str = ""
    unfinished: str = ""

    @property
    def name(self) -> str:
        return (
            "refused"
            if self.refusal
            else "INVALID"
            if self.invalid
            else "UNFINISHED"
            if self.unfinished
            else "supported"
        )


class Sampler:
    """Draws outputs from a matcher as a model with random weights would."""

    def __init__(self, tokenizer_json: str) -> None:
        self.tokenizer = LLTokenizer(tokenizer_json)
        self._eos = self.tokenizer.eos_token
        texts = [self.tokenizer.decode_bytes([token]) for token in range(self.tokenizer.vocab_size)]
        self._closes = [bool(text) and text[0] in _CLOSERS for text in texts]
        self._threads = grammar_threads(1)

    def judge(self, schema: Any, chance: random.Random) -> Verdict:
        try:
            grammar = Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "").to_grammar()
            matcher = self._threads.submit(compile_grammar, grammar, self.tokenizer).result()
        except GrammarError as error:
            return Verdict(refusal=str(error))
        validator = jsonschema.Draft202012Validator(schema, format_checker=_FORMATS)
        num_finished = 0
        reason = ""
        for _ in range(_MAX_ATTEMPTS):
            matcher_copy = matcher.deep_copy()
            output = self.sample(matcher_copy, chance)
            if output is None:
                reason = matcher_copy.get_error() or reason
                continue
            num_finished += 1
            try:
                validator.validate(json.loads(output))
            except (ValueError, jsonschema.ValidationError) as problem:
                return Verdict(invalid=f"{output!r}: {str(problem).splitlines()[0]}")
            if num_finished == SAMPLES:
                return Verdict()
        return Verdict(unfinished=f"{num_finished} outputs ended. {reason}")

    def sample(self, matcher: LLMatcher, chance: random.Random) -> str | None:
        """Samples an output as a model with random weights would: each token has a fixed random weight. Returns None if
        the output reaches the token limit, or a state in which no token is allowed."""
        spread = chance.choice([0.0, 1.0, 3.0])
        weights = [2.718 ** chance.gauss(0, spread) for _ in self._closes]
        tokens: list[int] = []
        for position in range(_MAX_TOKENS):
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            allowed = [token for token in range(len(weights)) if mask >> token & 1]
            if not allowed or matcher.is_error():
                return None
            haste = 1.0 + max(0, position - _PATIENCE) ** 2
            drawn = [
                weights[token] * (haste * 10 if token == self._eos else haste if self._closes[token] else 1.0)
                for token in allowed
            ]
            (token,) = chance.choices(allowed, drawn)
            if token == self._eos:
                return self.tokenizer.decode_bytes(tokens).decode()
            if not matcher.consume_token(token):
                return None
            tokens.append(token)
        return None


def suite(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """Yields (file, description, schema) for each test case."""
    for path in [*sorted(folder.glob("*.json")), *sorted(folder.glob("optional/**/*.json"))]:
        for case in json.loads(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(folder).with_suffix("")), case["description"], case["schema"]


@dataclass(frozen=True, slots=True)
class Judged:
    file: str
    description: str
    verdict: Verdict


def table(judged: list[Judged]) -> str:
    """Returns a Markdown table with a row per file of the suite. Each file is named for its keyword."""
    counts: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    for one in judged:
        counts.setdefault(one.file, Counter())[one.verdict.name] += 1
        if one.verdict.refusal:
            reasons.setdefault(one.file, Counter())[_short(one.verdict.refusal)] += 1
    lines = ["| file of the suite | supported | refused | because of |", "|---|---:|---:|---|"]
    for file, count in counts.items():
        why = "; ".join(reason for reason, _ in reasons.get(file, Counter()).most_common(4))
        lines.append(f"| {file} | {count['supported']} | {count['refused']} | {why} |")
    total: Counter[str] = sum(counts.values(), Counter())
    lines.append(f"| **all** | **{total['supported']}** | **{total['refused']}** | |")
    return "\n".join(lines)


def _short(refusal: str) -> str:
    """Shortens an error message for the table."""
    return refusal.removeprefix("Unimplemented keys: ").replace("|", "\\|").replace("<", "&lt;")[:90]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path, help="folder of the suite's files for draft 2020-12")
    parser.add_argument("--tokenizer", type=Path, default=Path("quire/models/quire-chat/tokenizer.json"))
    parser.add_argument("--output", type=Path, default=Path("docs/structured-output.md"))
    args = parser.parse_args()
    sampler = Sampler(args.tokenizer.read_text(encoding="utf-8"))
    judged = []
    for file, description, schema in suite(args.suite):
        judged.append(Judged(file, description, sampler.judge(schema, random.Random(f"{file} {description}"))))
        verdict = judged[-1].verdict
        if verdict.invalid or verdict.unfinished:
            print(f"{verdict.name} {file}: {description}: {verdict.invalid or verdict.unfinished}", file=sys.stderr)
    head, _, tail = args.output.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, tail = tail.partition(_END)
    args.output.write_text(f"{head}{_BEGIN}\n\n{table(judged)}\n\n{_END}{tail}", encoding="utf-8")
    if any(one.verdict.invalid or one.verdict.unfinished for one in judged):
        sys.exit(1)


if __name__ == "__main__":
    main()
