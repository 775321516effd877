"""`quire chat`: a chat with a server's model in the terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openai import APIConnectionError, APIError, APIStatusError, OpenAI

from quire.cli.conversation import Conversation
from shared.config import option, resolve

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

# Seconds of waiting after which the command prints what it waits for.
PATIENCE_S = 2.0
# Seconds after which Ctrl-C has an effect at the latest.
_ALARM_S = 0.2
HELP = """\
/system TEXT   set the system message; without TEXT, show it
/reset         forget the conversation
/help          show this
/exit          leave, as does Ctrl-D
Ctrl-C stops an answer; Alt-Enter starts a new line; the arrow keys go through earlier input."""


@dataclass(frozen=True, slots=True)
class ChatConfig:
    url: str = option("http://127.0.0.1:8000", "URL of the server, with or without /v1.")
    model: str = option("", "Model to talk to. If left out, the server's first one.")
    system: str = option("", "System message.")
    temperature: float | None = option(
        None,
        "Sampling temperature: 0 is greedy, more is more varied. If left out, the server's default.",
        minimum=0,
        maximum=2,
    )
    max_tokens: int | None = option(None, "Maximum number of tokens of an answer.", minimum=1)
    api_key: tuple[str, ...] = option((), "API key of the server, if it needs one.", secret=True)


def main(argv: Sequence[str]) -> int:
    config = resolve(ChatConfig, argv, prog="quire chat", description="Talk to any server with OpenAI's API.")
    base_url = config.url.rstrip("/").removesuffix("/v1") + "/v1"
    key = config.api_key[0] if config.api_key else os.environ.get("OPENAI_API_KEY", "none")
    with OpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
        try:
            model = config.model or _first_model(client, config.url)
            named = {"temperature": config.temperature, "max_tokens": config.max_tokens}
            options = {name: value for name, value in named.items() if value is not None}
            conversation = Conversation(client, model, config.system, options)
            if sys.stdin.isatty() and sys.stdout.isatty():
                _talk(conversation, config.url, model)
            else:
                _read_lines(conversation, sys.stdin)
        except APIError as error:
            print(f"quire chat: {_sentence(error, config.url)}", file=sys.stderr)
            return 1
        except StopIteration:
            print(f"quire chat: the server at {config.url} has no model", file=sys.stderr)
            return 1
        except (KeyboardInterrupt, BrokenPipeError):
            return 130
    return 0


def _first_model(client: OpenAI, url: str) -> str:
    """Returns the id of the server's first model. Raises openai.APIError, or StopIteration if there is no model."""
    with interruptible(), _told(f"waiting for the server at {url} to list its models"):
        return next(iter(client.models.list())).id


def _answer(conversation: Conversation, text: str) -> Generator[str, None, None]:
    """Yields the pieces of `Conversation.answer`; prints a notice if the first piece takes long."""
    told = _told("waiting for the answer to begin")
    with interruptible(), told as has_come, closing(conversation.answer(text)) as pieces:
        for piece in pieces:
            has_come()
            yield piece


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes sure that Ctrl-C ends a wait for the server. Python raises KeyboardInterrupt between two instructions. A
    signal that comes after the last of them and before the system call has no effect until the call returns, which can
    be never. So a timer interrupts the call again and again."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, _ALARM_S, _ALARM_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _told(what: str) -> Iterator[Callable[[], None]]:
    """Prints `what` if standard error is a terminal and the user waits longer than PATIENCE_S. The wait begins with the
    `with` block, and ends when the yielded function is called or the block is left."""
    timer = threading.Timer(PATIENCE_S, lambda: print(f"{what} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def _read_lines(conversation: Conversation, lines: Iterable[str]) -> None:
    """Prints the answer to each non-empty line, and no other text. Raises openai.APIError."""
    for line in lines:
        if line.strip():
            for piece in _answer(conversation, line.strip()):
                print(piece, end="", flush=True)
            print(flush=True)


def _talk(conversation: Conversation, url: str, model: str) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{model}[/bold] at {url}   [dim]/help lists the commands, Ctrl-D leaves[/dim]")
    session = _prompt_session()
    while True:
        try:
            text = session.prompt("\n› ").strip()
        except KeyboardInterrupt:
            continue  # Ctrl-C drops the line that the user was typing.
        except EOFError:
            return
        match text.split(maxsplit=1):
            case []:
                pass
            case ["/exit" | "/quit"]:
                return
            case ["/help"]:
                console.print(HELP, style="dim", markup=False)
            case ["/reset"]:
                conversation.reset()
                console.print("conversation forgotten", style="dim")
            case ["/system"]:
                console.print(conversation.system or "no system message", style="dim", markup=False)
            case ["/system", system]:
                conversation.system = system
                console.print("system message set", style="dim")
            case [word, *_] if word.startswith("/") and word.count("/") == 1:
                console.print(f"there is no command {word}; /help lists the commands", style="dim", markup=False)
            case _:
                try:
                    with closing(_answer(conversation, text)) as pieces:
                        for piece in pieces:
                            console.print(piece, end="", markup=False)
                    note = str(conversation.figures or "")
                except KeyboardInterrupt:
                    note = "stopped"
                except APIError as error:
                    note = _sentence(error, url)
                console.print(f"\n{note}", style="dim", markup=False)


def _prompt_session() -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "quire")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    return PromptSession(history=FileHistory(str(state / "chat_history")), key_bindings=bindings)


def _sentence(error: APIError, url: str) -> str:
    if isinstance(error, APIStatusError):
        return error.message
    if isinstance(error, APIConnectionError):
        return f"no server answers at {url}; start one with: quire serve"
    return f"the answer of the server at {url} failed: {error.message}"
