"""JSON of output tokens' log probabilities, in the format that the chat APIs share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any

from services.router.http.json import Encoded, Items
from services.router.logprobs import TokenLogprob
from services.router.text import Vocabulary


def chat_logprobs(entries: Sequence[TokenLogprob], names: TokenNames) -> dict[str, Any]:
    """Returns a choice's `logprobs`, for `texts_of` to encode."""
    return {"content": Items(_ChatLogprobs(entries, names)), "refusal": None}


@dataclass(frozen=True, slots=True)
class _ChatLogprobs:
    """Iterable over the JSON of each entry. The JSON is not stored: each pass over the entries makes it again. Some
    answers contain the same log probabilities twice, and need two passes."""

    entries: Sequence[TokenLogprob]
    names: TokenNames

    def __iter__(self) -> Iterator[Encoded]:
        return (Encoded(chat_logprob(entry, self.names)) for entry in self.entries)


def chat_logprob(entry: TokenLogprob, names: TokenNames) -> str:
    """Returns an entry's JSON text."""
    top = ",".join([f"{{{_token(token_id, logprob, names)}}}" for token_id, logprob in entry.top])
    return f'{{{_token(entry.token_id, entry.logprob, names)},"top_logprobs":[{top}]}}'


@dataclass(frozen=True, slots=True)
class TokenNames:
    """Returns the names by which log probabilities refer to tokens: their texts or their ids."""

    vocabulary: Vocabulary
    # Whether a token's name is its id, as in `token_id:7`, instead of its text. Texts can be ambiguous, because two
    # tokens can have equal texts, and a token can be a part of a character.
    by_id: bool = False
    # Cache of `fields`, by token id.
    _fields: dict[int, tuple[str, str]] = field(default_factory=dict)

    def fields(self, token_id: int) -> tuple[str, str]:
        """Returns the JSON of a token's name and of its bytes."""
        fields = self._fields.get(token_id)
        if fields is None:
            in_bytes = ",".join(map(str, self.vocabulary.token_bytes(token_id)))
            fields = self._fields[token_id] = (encode_basestring(self.name(token_id)), f"[{in_bytes}]")
        return fields

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.by_id else self.text(token_id)

    def text(self, token_id: int) -> str:
        """Returns the token's text. It is not exact if the token is part of a character; for such tokens, answers also
        contain the `bytes`."""
        return self.vocabulary.shown_text(token_id)


def _token(token_id: int, logprob: float, names: TokenNames) -> str:
    """Returns the JSON of the three fields that describe one token, without braces."""
    token, in_bytes = names.fields(token_id)
    return f'"token":{token},"logprob":{finite(logprob)!r},"bytes":{in_bytes}'


def finite(logprob: float) -> float:
    """Returns the log probability, or -9999 if it is lower than -9999, because JSON has no infinity. OpenAI documents
    -9999 for very unlikely tokens."""
    return logprob if logprob > -9999.0 else -9999.0
