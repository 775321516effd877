"""What every real model is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from openai.types.chat import ChatCompletionUserMessageParam

NUM_TOKENS = 64
TEXTS = (
    "Once upon a time, there was a little girl",
    "The dog",
    "What is 7 plus 5?",
    "One day, Tom and Sue went to the park. They saw a big, red ball. Tom wanted to play with it, but",
    "Count from 3 to 7.",
)


def tokenizer_of(directory: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(directory)


def question(text: str) -> ChatCompletionUserMessageParam:
    return {"role": "user", "content": text}


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """Returns the prompt as transformers has it: in the chat template, for a model with one."""
    if tokenizer.chat_template:
        rendered = tokenizer.apply_chat_template([question(text)], add_generation_prompt=True, return_dict=True)
        return list(rendered["input_ids"])
    return list(tokenizer(text)["input_ids"])
