"""Command-line parser that accepts vLLM's command lines, in which flags can have underscores, and switches can have a
value (`--flag true`).
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

# The values that a switch accepts, in lower case.
TRUTH: Mapping[str, bool] = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
# Minimum difflib ratio between an unknown flag and the flag that the error suggests for it.
_LIKENESS = 0.7
# Name of a namespace attribute that exists only during parsing. It has a pair (action, values) for each occurrence of a
# StoreItems flag.
_OCCURRENCES = "items of each flag"


class OptionParser(argparse.ArgumentParser):
    """Reads `--max_model_len` as `--max-model-len`, and `--flag false` as `--no-flag`. Flags cannot be abbreviated,
    because a prefix of one flag can be the name of another flag in vLLM. An error is one line, with exit status 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]  # typeshed has overloads for namespaces
        words = list(sys.argv[1:] if args is None else args)
        namespace, unknown = self.parse_known_args(self._plain(words), namespace)
        if unknown:
            self.error(self._describe(unknown))
        for action, items in vars(namespace).pop(_OCCURRENCES, ()):
            self._check_items(action, items, namespace)
        return namespace

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}\n")

    def _plain(self, words: list[str]) -> list[str]:
        """Rewrites every flag before a `--` to the form that argparse knows: `--max_model_len` to `--max-model-len`,
        `--flag false` to `--no-flag`."""
        end = words.index("--") if "--" in words else len(words)
        plain: list[str] = []
        for word in words[:end]:
            last = plain[-1] if plain else ""
            if word.lower() in TRUTH and self._is_switch(last):
                plain[-1] = self._switched(last, TRUTH[word.lower()])
            elif word.startswith("-"):
                plain.append(self._flag(word))
            else:
                plain.append(word)
        return plain + words[end:]

    def _flag(self, word: str) -> str:
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        head, dot, _ = name.partition(".")
        if dot and isinstance(self._option_string_actions.get(head), StoreJson):
            name = head
        if equals and self._is_switch(name) and value.lower() in TRUTH:
            return self._switched(name, TRUTH[value.lower()])
        return name + equals + value

    def _check_items(self, action: StoreItems, items: Sequence[str], namespace: argparse.Namespace) -> None:
        """Stops with an error if a flag with several values has taken a word that could be the positional argument.
        `items`: the values of one occurrence of the flag."""
        flag = action.option_strings[-1]
        positional = next((one.dest for one in self._actions if not one.option_strings), None)
        is_missing = positional is not None and not hasattr(namespace, positional)
        takes_it = is_missing and len(items) > 1 and _may_be_a_model(items[-1])
        if action.is_secret and (takes_it or any(map(_looks_like_a_model, items[1:]))):
            # The values of this flag are secrets, such as API keys. The model's name, which is public, must not become
            # one of them. The error does not print the values, because most of them are secrets.
            self.error(
                f"{flag} takes every word up to the next flag, and one of them may be the model: give the model before "
                f"{flag} or with --model, and each value a {flag} of its own"
            )
        if takes_it:
            self.error(
                f"{flag} takes every word up to the next flag, {items[-1]!r} too: give the {positional} before it, or "
                f"with --{positional}; if {items[-1]!r} is no {positional}, give it a {flag} of its own"
            )

    def _is_switch(self, flag: str) -> bool:
        return isinstance(self._option_string_actions.get(flag), argparse.BooleanOptionalAction)

    def _switched(self, flag: str, value: bool) -> str:
        """Returns the flag that has the same effect as `flag value`: for example, `--x` for `--no-x false`."""
        is_negative = flag.startswith("--no-") and f"--{flag[5:]}" in self._option_string_actions[flag].option_strings
        if value:
            return flag
        return f"--{flag[5:]}" if is_negative else f"--no-{flag[2:]}"

    def _describe(self, unknown: Sequence[str]) -> str:
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if not flags:
            positional = next((action for action in self._actions if not action.option_strings), None)
            if positional is not None and positional.nargs == "*":
                return f"{unknown[0]!r} is one word too many: give all {positional.dest}s one after another"
            return f"{unknown[0]!r} is one word too many"
        known = [name for action in self._actions if not _is_hidden(action) for name in action.option_strings]
        sentences = []
        for flag in flags:
            (like,) = difflib.get_close_matches(flag, known, 1, _LIKENESS) or (None,)
            sentences.append(f"there is no option {flag}" + (f"; did you mean {like}?" if like else ""))
        return "; ".join(sentences) + ("" if sentences[-1].endswith("?") else f"; see {self.prog} --help")


def _looks_like_a_model(word: str) -> bool:
    """Returns whether `word` is an existing path, or has the form of a path or of a name on a model hub."""
    if os.path.exists(word) or word.startswith(("/", "./", "../", "~")):
        return True
    return re.fullmatch(r"[\w.-]+/[\w.-]+", word) is not None


def _may_be_a_model(word: str) -> bool:
    """Returns whether `word` looks like a model, or could be a model name without an organization, such as gpt2."""
    return _looks_like_a_model(word) or (not word.isdigit() and re.fullmatch(r"[\w.-]+", word) is not None)


def _is_hidden(action: argparse.Action) -> bool:
    return action.help == argparse.SUPPRESS


class StoreItems(argparse.Action):
    """Action of a flag that takes one or more values and can be repeated. `is_secret`: its values are never printed."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, is_secret: bool = False, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs="+", **options)
        self.is_secret = is_secret

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, ()), *values])
        setattr(namespace, _OCCURRENCES, [*getattr(namespace, _OCCURRENCES, ()), (self, values)])


class StoreJson(argparse.Action):
    """Action of a flag that takes a JSON object, or one key at a time: `--flag.key value`. No code reads the values, so
    the action keeps only the last value, without its key."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)


class StoreOnce(argparse.Action):
    """Action of an argument that can be given by position or with its flag. Two different values are an error. With
    nargs="*", it stores one value as it is, and several as a list."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if isinstance(values, list) and len(values) == 1:
            values = values[0]
        before = getattr(namespace, self.dest, values)
        if before != values:
            parser.error(f"the {self.dest} is given twice, as {before!r} and as {values!r}")
        setattr(namespace, self.dest, values)
