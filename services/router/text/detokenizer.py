"""Converts token ids to text, token by token, without broken characters.

The tokens of most models are byte strings: byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM) and sentencepiece with byte
fallback (Llama 2, Mistral, Gemma). For these, the output is the UTF-8 decoding of the tokens' bytes. An incomplete
character waits for the rest of its bytes. If the output ends before they come, the character is never sent. Invalid
bytes become U+FFFD, as in any decoder. For other kinds of decoders, the tokenizers library decodes a sliding window, as
in vLLM and TGI.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer as Library

_REPLACEMENT = "\ufffd"
# Number of the prompt's last tokens that can affect the output's text. The prompt can end within a UTF-8 character,
# which has at most four bytes.
_NUM_CONTEXT_TOKENS = 4
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """Converts the tokens of one choice."""

    def push(self, token_id: int) -> str:
        """Returns the characters that this token completes: often one word, sometimes none."""


class Vocabulary:
    """Makes the detokenizers of one tokenizer, and caches the text of each token seen."""

    def __init__(self, library: Library) -> None:
        self._library = library
        definition = json.loads(library.to_str())
        self._to_bytes = _token_bytes_function(definition)
        self._strips_first_space = _strips_first_space(definition)
        added = {token["id"]: token for token in definition.get("added_tokens") or ()}
        # Ids of the added tokens of a byte-level vocabulary. The name of an added token is its text. The name of any
        # other token is written in GPT-2's alphabet, in which each character stands for one byte.
        self._literal = frozenset(added) if self._to_bytes is _byte_level_bytes else frozenset[int]()
        self._special = frozenset(token_id for token_id, token in added.items() if token["special"])
        # Caches by token id, limited by the size of the vocabulary. A text is None if its bytes are not valid UTF-8.
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}

    def detokenizer(self, prompt_token_ids: Sequence[int], skip_special_tokens: bool = True) -> Detokenizer:
        """Returns a detokenizer for the output after this prompt."""
        return self.detokenizers(prompt_token_ids, skip_special_tokens)()

    def detokenizers(
        self,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        visible: frozenset[int] = frozenset(),
    ) -> Callable[[], Detokenizer]:
        """Returns a function that makes a detokenizer for each answer to this prompt, which is read once. `visible`:
        special tokens that are not skipped."""
        context = list(prompt_token_ids[-_NUM_CONTEXT_TOKENS:])
        hidden = self._special - visible if skip_special_tokens else frozenset[int]()
        if self._to_bytes is None:
            return lambda: _WindowDetokenizer(self._library, context, hidden)
        # The space before the first word of a text is dropped. This word is in the output only if the prompt has no
        # visible token.
        is_first_word = self._strips_first_space and all(token_id in hidden for token_id in prompt_token_ids)
        return lambda: _BytesDetokenizer(self, context, hidden, is_first_word)

    def special_ids(self, tokens: Iterable[str]) -> frozenset[int]:
        """Returns the ids of those `tokens` that are special tokens of this tokenizer."""
        ids = map(self.token_id, tokens)
        return frozenset(token_id for token_id in ids if token_id is not None and token_id in self._special)

    def token_id(self, token: str) -> int | None:
        """Returns the id of a token by its name in the vocabulary; None if there is no such token."""
        token_id: int | None = self._library.token_to_id(token)
        return token_id

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of a token, which can be a special token. Empty if the vocabulary has no such id."""
        known = self._bytes.get(token_id)
        if known is None:
            token = self._library.id_to_token(token_id)
            if token is None:
                known = b""
            elif self._to_bytes is None:
                known = self._library.decode([token_id], skip_special_tokens=False).encode()
            elif token_id in self._literal:
                known = token.encode()
            else:
                known = self._to_bytes(token)
            self._bytes[token_id] = known
        return known

    def token_name(self, token_id: int) -> str:
        """Returns the token as the vocabulary writes it. Empty if the vocabulary has no such id."""
        return self._library.id_to_token(token_id) or ""

    def shown_text(self, token_id: int) -> str:
        """Returns the token's text, with U+FFFD in place of bytes that are not valid UTF-8."""
        text = self.token_text(token_id)
        return self.token_bytes(token_id).decode(errors="replace") if text is None else text

    def token_text(self, token_id: int) -> str | None:
        """Returns the token's text; None if its bytes alone are not valid UTF-8."""
        try:
            return self._texts[token_id]
        except KeyError:
            try:
                text = self.token_bytes(token_id).decode()
            except UnicodeDecodeError:
                text = None
            self._texts[token_id] = text
            return text


class _BytesDetokenizer:
    __slots__ = ("_decoder", "_hidden", "_is_first_word", "_is_whole", "_texts", "_vocabulary")

    def __init__(
        self, vocabulary: Vocabulary, context: Sequence[int], hidden: frozenset[int], is_first_word: bool
    ) -> None:
        self._vocabulary = vocabulary
        self._is_first_word = is_first_word
        self._texts = vocabulary._texts
        self._hidden = hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Decode the context first: it can end with the first bytes of a character that the output completes.
        self._decoder.decode(b"".join(vocabulary.token_bytes(i) for i in context if i not in hidden))
        self._is_whole = not self._decoder.getstate()[0]

    def push(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        text = self._decode(token_id)
        if self._is_first_word and text:
            self._is_first_word = False
            return text.removeprefix(" ")
        return text

    def _decode(self, token_id: int) -> str:
        if self._is_whole:
            text = self._texts.get(token_id)
            if text is None:
                text = self._vocabulary.token_text(token_id)
            if text is not None:
                return text
        text = self._decoder.decode(self._vocabulary.token_bytes(token_id))
        self._is_whole = not self._decoder.getstate()[0]
        return text


class _WindowDetokenizer:
    """Decodes a window of tokens with the tokenizers library. The window consists of the tokens whose text was returned
    last and the new tokens since then. `push` returns the text that the new tokens add, once its last character is
    complete."""

    __slots__ = ("_hidden", "_ids", "_library", "_prefix_text", "_read")

    def __init__(self, library: Library, context: Sequence[int], hidden: frozenset[int]) -> None:
        self._library = library
        self._hidden = hidden
        self._ids = [token_id for token_id in context if token_id not in hidden]
        self._read = len(self._ids)
        self._prefix_text = self._decode(self._ids)

    def push(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if len(text) <= len(self._prefix_text) or text.endswith(_REPLACEMENT):
            return ""
        new = text[len(self._prefix_text) :]
        del self._ids[: self._read]
        self._read = len(self._ids)
        self._prefix_text = self._decode(self._ids)
        return new

    def _decode(self, ids: list[int]) -> str:
        return self._library.decode(ids, skip_special_tokens=False)


def _token_bytes_function(definition: dict[str, Any]) -> Callable[[str], bytes] | None:
    """Returns a function that converts a token's name to the token's bytes. Returns None if the decoder in `definition`
    (tokenizer.json) is not of a kind that maps each name to bytes.
    """
    decoder = definition.get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level_bytes
    if kinds in (["Replace", "ByteFallback", "Fuse", "Strip"], ["Replace", "ByteFallback", "Fuse"]):
        pattern, content = steps[0]["pattern"].get("String"), steps[0]["content"]
        if pattern is not None:
            return lambda token: _byte_fallback_bytes(token, pattern, content)
    return None


def _strips_first_space(definition: dict[str, Any]) -> bool:
    steps = (definition.get("decoder") or {}).get("decoders") or []
    return any(step.get("type") == "Strip" and step.get("content") == " " and step.get("start") for step in steps)


def _byte_fallback_bytes(token: str, pattern: str, content: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(pattern, content).encode()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_BY_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()


def _byte_by_character() -> dict[str, int]:
    """Returns the byte of each character in GPT-2's alphabet for bytes. A printable byte is its own character; the
    other bytes are the characters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_BY_CHARACTER = _byte_by_character()
