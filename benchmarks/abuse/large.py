"""Very large requests: valid ones with large answers, and ones that exceed a limit."""

from __future__ import annotations

import json
import random
from functools import partial

from benchmarks.abuse.attack import MODEL, Attack, Row, http_request, posting, sending

HELLO = [{"role": "user", "content": "Hello!"}]
# Correct statuses for a request that is too large.
REFUSED = (400, 413)


def echoed_log_probabilities(prompts: int = 30, tokens: int = 2001) -> Attack:
    chance = random.Random(1)
    ids = [[chance.randrange(10, 500) for _ in range(tokens)] for _ in range(prompts)]
    return posting("/v1/completions", prompt=ids, max_tokens=1, echo=True, logprobs=20)


def many_choices(choices: int = 128, tokens: int = 600) -> Attack:
    return posting(
        "/v1/chat/completions",
        messages=HELLO,
        n=choices,
        max_tokens=tokens,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=20,
    )


def biases(count: int = 10**6) -> Attack:
    return posting("/v1/chat/completions", messages=HELLO, logit_bias={str(key): 1 for key in range(count)})


def long_text(num_bytes: int = 15_000_000) -> Attack:
    return posting("/tokenize", prompt="word " * (num_bytes // 5))


def content_blocks(count: int = 3 * 10**5) -> Attack:
    blocks = [{"type": "text", "text": "a"}] * count
    return posting("/v1/chat/completions", messages=[{"role": "user", "content": blocks}])


def ollama_options(count: int = 10**6) -> Attack:
    return posting("/api/chat", messages=HELLO, options={f"o{number}": 1 for number in range(count)})


def unknown_fields(count: int = 8 * 10**5) -> Attack:
    return posting("/v1/chat/completions", messages=HELLO, **{f"f{number}": 1 for number in range(count)})


def long_message(num_bytes: int = 15_000_000) -> Attack:
    return posting("/v1/chat/completions", messages=[{"role": "user", "content": "a" * num_bytes}])


def many_messages(count: int = 100_000) -> Attack:
    return posting("/v1/chat/completions", messages=HELLO * count)


def token_ids(count: int = 3_000_000) -> Attack:
    return posting("/v1/completions", prompt=[10] * count)


def ollama_calls(messages: int = 54, results: int = 9_000) -> Attack:
    """No result belongs to any of the calls."""
    call = {"function": {"name": "a", "arguments": {}}}
    asking = [{"role": "assistant", "tool_calls": [call] * 128}] * messages
    return posting("/api/chat", messages=[*asking, *[{"role": "tool", "tool_name": "b", "content": ""}] * results])


def template_arguments(count: int = 60_000) -> Attack:
    return posting("/v1/chat/completions", messages=HELLO, chat_template_kwargs={f"a{n}": n for n in range(count)})


def template_list(count: int = 400_000) -> Attack:
    kwargs = {"names": [str(number) for number in range(count)]}
    return posting("/v1/chat/completions", messages=HELLO, max_tokens=2, chat_template_kwargs=kwargs)


def repeated_tools(tools: int = 128, fields: int = 250) -> Attack:
    """The first events of the answer repeat them."""
    parameters = {"type": "object", "properties": {f"f{number}": {} for number in range(fields)}}
    functions = [{"type": "function", "name": f"t{number}", "parameters": parameters} for number in range(tools)]
    return posting("/v1/responses", input="Hello!", tools=functions, tool_choice="none", stream=True)


def nested(depth: int = 10**5) -> Attack:
    body = json.dumps({"model": MODEL, "messages": HELLO, "user": "@"}).replace('"@"', "[" * depth + "]" * depth)
    return sending(http_request("/v1/chat/completions", body.encode()))


def long_number(digits: int = 10**6) -> Attack:
    body = json.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 777}).replace("777", "7" * digits)
    return sending(http_request("/v1/chat/completions", body.encode()))


ROWS = (
    Row("completions: 30 prompts of 2,001 ids, echo, 20 log probabilities", echoed_log_probabilities, (200, 400, 413)),
    Row("chat: n = 128, 600 tokens, 20 log probabilities", many_choices, (200, 400, 413)),
    # Most rows come twice: with a body that the gateway refuses because of its size, and with one that the router
    # reads.
    Row("chat: logit_bias of 1,000,000 keys", biases, REFUSED, "logit_bias"),
    Row("chat: logit_bias of 250,000 keys", partial(biases, 250_000), (400,), "logit_bias"),
    Row("/tokenize: 15 MB of text", long_text, REFUSED, "prompt"),
    Row("/tokenize: 3.9 MB of text", partial(long_text, 3_900_000), (400,), "prompt"),
    Row("/tokenize: 1 MB of text", partial(long_text, 1_000_000), (200,)),
    Row("chat: 300,000 content blocks", content_blocks, REFUSED),
    Row("chat: 100,000 content blocks", partial(content_blocks, 100_000), (400,)),
    Row("Ollama: 1,000,000 options", ollama_options, REFUSED),
    Row("Ollama: 250,000 options", partial(ollama_options, 250_000), (400,)),
    Row("chat: 800,000 unknown fields", unknown_fields, REFUSED),
    Row("chat: 250,000 unknown fields", partial(unknown_fields, 250_000), (400,)),
    Row("Ollama: 6,912 calls and 9,000 results of others", ollama_calls, (200, 400)),
    Row("chat: 60,000 arguments of the template", template_arguments, (200, 400)),
    Row("chat: a list of 400,000 strings for the template", template_list, (400,), "chat_template_kwargs.names"),
    Row("chat: a list of 130,000 strings for the template", partial(template_list, 130_000), (200,)),
    Row("responses: 128 tools of 250 fields, streamed", repeated_tools, (200, 400)),
    Row("JSON bomb: 100,000 arrays in one another", nested, REFUSED),
    Row("JSON bomb: a number of 1,000,000 digits", long_number, REFUSED),
    Row("JSON bomb: a string of 15 MB", long_message, REFUSED),
    Row("JSON bomb: a string of 3.9 MB", partial(long_message, 3_900_000), (400,), "messages"),
    Row("JSON bomb: 100,000 messages", many_messages, (400,), "messages"),
    Row("JSON bomb: 3,000,000 token ids", token_ids, REFUSED, "prompt"),
    Row("JSON bomb: 900,000 token ids", partial(token_ids, 900_000), (400,), "prompt"),
    Row("a body of 20 MB", lambda: posting("/v1/chat/completions", messages=HELLO, user="x" * 20_000_000), (413,)),
    # Nearly the largest body that the gateway reads to its end.
    Row("a body of 260 MB", lambda: posting("/v1/chat/completions", messages=HELLO, user="x" * 260_000_000), (413,)),
)
