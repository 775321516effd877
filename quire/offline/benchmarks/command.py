"""What both benchmarks share: reading the options, starting the model, and prompts of random tokens."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from quire.bench.prompts import SAMPLE_TEXT, DatasetError, Prompt, random_prompts, sharegpt_prompts
from quire.bench.sharegpt import read_turns
from quire.cli.serve import add_stack_options
from quire.cli.stack import WIRING
from quire.cli.supervisor import StackError
from quire.client import QuireError
from quire.offline.llm import GATEWAY_ONLY, LLM
from shared.config import ConfigError, add_options, build
from shared.option_parser import OptionParser

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def run(
    prog: str, description: str, config_class: type[T], argv: Sequence[str], measure: Callable[[T, LLM], None]
) -> int:
    """Reads the options, starts the model, and measures it. Returns the exit status."""
    parser = OptionParser(prog=prog, description=description)
    group = parser.add_argument_group("benchmark")
    add_options(group, config_class)
    group.add_argument(
        "--model", metavar="MODEL", default=argparse.SUPPRESS, help="Model to measure, as for quire serve."
    )
    add_stack_options(parser, WIRING | GATEWAY_ONLY)
    flags: dict[str, Any] = vars(parser.parse_args(argv))
    if flags.pop("config") is not None:
        parser.error("--config is for quire serve")
    flags.pop("verbose")
    own = {field.name: flags.pop(field.name) for field in fields(config_class) if field.name in flags}
    try:
        config = build(config_class, own)
        with LLM(**flags) as llm:
            measure(config, llm)
    except (ConfigError, DatasetError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except (StackError, QuireError, ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def random_tokens(llm: LLM, count: int, input_len: int, output_len: int, seed: int) -> list[Prompt]:
    """Returns prompts of tokens that are in the vocabulary and not special."""
    vocabulary = sorted(set(llm.get_tokenizer().encode(SAMPLE_TEXT, add_special_tokens=False)))
    return random_prompts(count, vocabulary, input_len, output_len, 0.0, random.Random(seed))


def sharegpt_questions(llm: LLM, path: str, count: int, output_len: int | None, seed: int) -> list[Prompt]:
    """Returns first questions of ShareGPT conversations. Raises DatasetError."""
    tokenizer = llm.get_tokenizer()

    async def num_tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    return asyncio.run(sharegpt_prompts(read_turns(path), count, output_len, num_tokens, random.Random(seed)))
