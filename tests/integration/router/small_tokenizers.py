"""Two small real tokenizers, of the kinds that models have: byte-level BPE, and sentencepiece with byte fallback."""

from __future__ import annotations

import functools
import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN_ID = 2

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CORPUS = [
    "Hello, world! The quick brown fox jumps over the lazy dog. system user assistant tool",
    "Once upon a time there was a little girl who counted: one, two, three, four, five.",
    "Grüße aus Köln; déjà vu; żółć; 你好，世界; こんにちは; привет, мир; 👋🏽 👨‍👩‍👧‍👦 🎉",
]


@functools.cache
def byte_level() -> Tokenizer:
    """As in GPT-2, Llama 3, Qwen and SmolLM."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


@functools.cache
def byte_fallback() -> Tokenizer:
    """As in Llama 2: pieces with a mark for the space, bytes for everything else, a beginning token."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=150, show_progress=False)
    ascii_only = [text.encode("ascii", "ignore").decode() for text in _CORPUS]
    trained.train_from_iterator(ascii_only * 4, trainer)
    learned = json.loads(trained.to_str())["model"]
    names = [*SPECIAL_TOKENS[:3], *(f"<0x{byte:02X}>" for byte in range(256)), *learned["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name: index for index, name in enumerate(names)},
            merges=[tuple(merge) for merge in learned["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS[:3]))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def tokenizer_config(chat_template: str | list[dict[str, str]] | None = CHAT_TEMPLATE) -> dict[str, object]:
    config: dict[str, object] = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}}
    if chat_template is not None:
        config["chat_template"] = chat_template
    return config
