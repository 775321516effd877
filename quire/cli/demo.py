"""`quire demo`: starts a local stack, streams one answer, and stops the stack."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence

from openai import APIError, OpenAI

from quire.cli import gateway
from quire.cli.conversation import Conversation
from quire.cli.serve import run, with_port
from quire.cli.stack_options import build_stack
from quire.cli.supervisor import StackError
from shared.config import ConfigError
from shared.option_parser import OptionParser, StoreOnce

PROG = "quire demo"
PROMPT = "Tell me a story about a fox."


def main(argv: Sequence[str]) -> int:
    parser = OptionParser(
        prog=PROG, description="Starts a stack on a free port, streams one answer through the openai SDK, and stops it."
    )
    model_help = "as for quire serve; the bundled model if left out"
    parser.add_argument("model", nargs="?", metavar="MODEL", action=StoreOnce, default="", help=model_help)
    parser.add_argument("--model", metavar="MODEL", action=StoreOnce, default=argparse.SUPPRESS, help="the same")
    parser.add_argument("--prompt", default=PROMPT, help="question to ask")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the log lines of all parts")
    arguments = parser.parse_args(argv)

    async def chat(url: str, stop: Callable[[], None]) -> None:
        await asyncio.to_thread(_chat, url, stack.api_key or "none", arguments.prompt)
        stop()

    flags = {"port": "0", **({"model": arguments.model} if arguments.model else {})}
    try:
        stack = with_port(build_stack(flags, {}))
        asyncio.run(run(stack, chat, verbose=arguments.verbose))
    except (ConfigError, gateway.GatewayError, StackError, APIError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    return 0


def _chat(url: str, api_key: str, prompt: str) -> None:
    with OpenAI(base_url=f"{url}/v1", api_key=api_key) as client:
        model = next(iter(client.models.list())).id
        conversation = Conversation(client, model, "", {"max_tokens": 200, "temperature": 0})
        print(f"\n{prompt}\n", flush=True)
        for piece in conversation.answer(prompt):
            print(piece, end="", flush=True)
        print(f"\n\n{conversation.figures}", flush=True)
