"""Log probabilities of an answer's tokens as JSON, as the APIs for conversations have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any

from services.router.http.json import Encoded, Items
from services.router.logprobs import TokenLogprob
from services.router.text import Vocabulary


def chat_logprobs(entries: Sequence[TokenLogprob], names: TokenNames) -> dict[str, Any]:
    """To be encoded by `texts_of`."""
    return {"content": Items(_ChatLogprobs(entries, names)), "refusal": None}


@dataclass(frozen=True, slots=True)
class _ChatLogprobs:
    """Made anew each time that they are asked for: some answers have them several times."""

    entries: Sequence[TokenLogprob]
    names: TokenNames

    def __iter__(self) -> Iterator[Encoded]:
        return (Encoded(chat_logprob(entry, self.names)) for entry in self.entries)


def chat_logprob(entry: TokenLogprob, names: TokenNames) -> str:
    """As JSON."""
    top = ",".join([f"{{{_token(token_id, logprob, names)}}}" for token_id, logprob in entry.top])
    return f'{{{_token(entry.token_id, entry.logprob, names)},"top_logprobs":[{top}]}}'


@dataclass(frozen=True, slots=True)
class TokenNames:
    """What log probabilities call tokens."""

    vocabulary: Vocabulary
    # token_id:7 instead of a text, which may be a piece of a character, and another token's too.
    by_id: bool = False
    # What `fields` made.
    _fields: dict[int, tuple[str, str]] = field(default_factory=dict)

    def fields(self, token_id: int) -> tuple[str, str]:
        """A token's name and its bytes, as JSON."""
        fields = self._fields.get(token_id)
        if fields is None:
            in_bytes = ",".join(map(str, self.vocabulary.token_bytes(token_id)))
            fields = self._fields[token_id] = (encode_basestring(self.name(token_id)), f"[{in_bytes}]")
        return fields

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.by_id else self.text(token_id)

    def text(self, token_id: int) -> str:
        """A token by itself may be a piece of a character; its bytes are reported beside it."""
        return self.vocabulary.shown_text(token_id)


def _token(token_id: int, logprob: float, names: TokenNames) -> str:
    """The fields of an object, as JSON."""
    token, in_bytes = names.fields(token_id)
    return f'"token":{token},"logprob":{finite(logprob)!r},"bytes":{in_bytes}'


def finite(logprob: float) -> float:
    """JSON has no infinity; -9999 is what OpenAI documents for tokens out of reach."""
    return logprob if logprob > -9999.0 else -9999.0
