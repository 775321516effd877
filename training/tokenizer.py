"""The tokenizer both models share: whole words for what the wordings are made of, single bytes for all else.

A word to be spelled or reversed must come as letters, never as pieces that a merge happened to make. So there
are no merges at all: a piece of text that is in the vocabulary as a whole is one token (`ignore_merges`), and
any other falls apart into its bytes. Digits are always single. Every byte is in the vocabulary, so any UTF-8
text goes in and comes out unchanged.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from training import corpus

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL = (BEGIN, END, PAD, *ROLES.values())
CONTEXT = 2048

_PIECES = r"'(?:s|t|m|re|ve|ll|d)\b| ?[A-Za-z]+|[^A-Za-z]"
_SAMPLE_CHATS = 30_000
_MIN_COUNT = 40

# Any role that is neither system nor assistant (a tool's answer, say) speaks as the user.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] in ['system', 'developer'] %}{{ '<|system|>' }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' }}"
    "{% else %}{{ '<|user|>' }}{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% elif message['content'] %}"
    "{% for part in message['content'] %}{% if part['text'] is defined %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}"
    "{{ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build(seed: int) -> Tokenizer:
    """The tokenizer for the text that `seed` generates."""
    pieces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts: Counter[str] = Counter()
    known = corpus.known_words()
    for chat in islice(corpus.chats(seed), _SAMPLE_CHATS):
        for message in chat:
            for piece, _ in pieces.pre_tokenize_str(message["content"]):
                if len(piece) > 1 and piece.lstrip("Ġ'").lower() in known:
                    counts[piece] += 1
    whole = sorted(piece for piece, count in counts.items() if count >= _MIN_COUNT)
    vocabulary = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *whole]

    tokenizer = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[], ignore_merges=True)
    )
    tokenizer.pre_tokenizer = pieces
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(token)
    return int(found)


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, with the chat template inside."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
