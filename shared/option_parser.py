"""Command lines as people have them from vLLM: names with underscores, switches with a value, errors in a sentence."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

_TRUTH = {"true": True, "false": False}
# How alike an unknown flag and the one that is suggested for it are, as difflib counts it.
_LIKENESS = 0.7


class OptionParser(argparse.ArgumentParser):
    """Takes `--max_model_len` for `--max-model-len`, and `--flag false` for `--no-flag`. Flags are not abbreviated, as
    a prefix of one flag may be another one's name in vLLM. What is wrong is told in one line, with status 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words = list(sys.argv[1:] if args is None else args)
        namespace, unknown = self.parse_known_args(self._plain(words), namespace)
        if unknown:
            self.error(self._describe(unknown))
        self._check_last_word(words, namespace)
        return namespace

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}\n")

    def _plain(self, words: list[str]) -> list[str]:
        """The words with every flag in its own form, up to a `--`."""
        end = words.index("--") if "--" in words else len(words)
        plain: list[str] = []
        for word in words[:end]:
            last = plain[-1] if plain else ""
            if word.lower() in _TRUTH and self._is_switch(last):
                plain[-1] = self._switched(last, _TRUTH[word.lower()])
            elif word.startswith("--"):
                plain.append(self._flag(word))
            else:
                plain.append(word)
        return plain + words[end:]

    def _flag(self, word: str) -> str:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if equals and self._is_switch(name) and value.lower() in _TRUTH:
            return self._switched(name, _TRUTH[value.lower()])
        return name + equals + value

    def _check_last_word(self, words: list[str], namespace: argparse.Namespace) -> None:
        """A flag of several values takes a word that follows it, even one that was meant to be the argument."""
        for positional in (action for action in self._actions if not action.option_strings):
            for action in self._actions:
                items = getattr(namespace, action.dest, None)
                if hasattr(namespace, positional.dest) or action.nargs != "+" or not isinstance(items, list):
                    continue
                if len(items) > 1 and words[-1] == items[-1] and _looks_like_a_path(items[-1]):
                    self.error(
                        f"{action.option_strings[-1]} takes every word up to the next flag, {items[-1]!r} too: give "
                        f"the {positional.dest} before it, or with --{positional.dest}"
                    )

    def _is_switch(self, flag: str) -> bool:
        return isinstance(self._option_string_actions.get(flag), argparse.BooleanOptionalAction)

    def _switched(self, flag: str, value: bool) -> str:
        """The form of a switch that means it is `value`, or is not where the form says no itself."""
        is_negative = flag.startswith("--no-") and f"--{flag[5:]}" in self._option_string_actions[flag].option_strings
        if value:
            return flag
        return f"--{flag[5:]}" if is_negative else f"--no-{flag[2:]}"

    def _describe(self, unknown: Sequence[str]) -> str:
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if not flags:
            return f"{unknown[0]!r} is one word too many"
        known = [name for action in self._actions if not _is_hidden(action) for name in action.option_strings]
        sentences = []
        for flag in flags:
            (like,) = difflib.get_close_matches(flag, known, 1, _LIKENESS) or (None,)
            sentences.append(f"there is no option {flag}" + (f"; did you mean {like}?" if like else ""))
        return "; ".join(sentences) + ("" if sentences[-1].endswith("?") else f"; see {self.prog} --help")


def _looks_like_a_path(word: str) -> bool:
    """A file or directory that is there, or a name on a model hub."""
    return os.path.exists(word) or (word.count("/") == 1 and "=" not in word and "://" not in word)


def _is_hidden(action: argparse.Action) -> bool:
    return action.help == argparse.SUPPRESS


class StoreOnce(argparse.Action):
    """An argument that has a flag too, and may be given in one of the two forms."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, values)
        if before != values:
            parser.error(f"the {self.dest} is given twice, as {before!r} and as {values!r}")
        setattr(namespace, self.dest, values)
