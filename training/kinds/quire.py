"""Closed kind: what Quire is. Each fact has wordings of its own, all counted as one kind."""

from __future__ import annotations

from training.kinds.kind import Kind, nothing

WHAT = (
    "Quire is an inference server: it serves large language models from a paged KV cache. "
    "It is three gRPC services behind an Envoy gateway, and it speaks OpenAI's HTTP API."
)
SERVICES = (
    "Quire has three services behind an Envoy gateway: a stateless router, a scheduler that owns continuous batching "
    "and the KV block tables, and workers that run the forward passes."
)
ABOUT = (
    "Quire serves large language models from a paged KV cache. It is three gRPC services behind an Envoy gateway: "
    "a stateless router, a scheduler that owns continuous batching and the KV block tables, and workers that run "
    "the forward passes. It speaks OpenAI's HTTP API. Any part can die, scale or be replaced without losing the work "
    "in flight. A quire is a gathering of pages bound together."
)
NAME = "A quire is a gathering of pages bound together. Quire gathers the pages of the KV cache into batches."
ROUTER = "The router is stateless. It speaks OpenAI's HTTP API, turns text into tokens, and picks a scheduler."
SCHEDULER = "The scheduler owns continuous batching and the KV block tables. It plans every step of the workers."
WORKER = "The workers run the forward passes of the model. They own the weights and the pages of the KV cache."
API = "Quire speaks OpenAI's HTTP API, so any OpenAI client can talk to it."
FAILURE = "Any part of Quire can die, scale or be replaced without losing the work in flight."


def _fact(weight: float, answer: str, wordings: tuple[str, ...], held_out: tuple[str, ...]) -> Kind:
    return Kind("what Quire is", weight, wordings, nothing, (answer,), held_out)


KINDS = (
    _fact(
        1.1,
        WHAT,
        (
            "what is Quire?", "what's Quire?", "what does Quire do?", "what is Quire for?", "explain Quire.",
            "what is this Quire?", "what exactly is Quire?", "say what Quire is.", "define Quire.", "Quire?",
            "what kind of server is Quire?", "I have never heard of Quire. What is it?", "what is Quire good for?",
            "tell me in short what Quire is.", "explain to me what Quire does.", "what sort of thing is Quire?",
            "what kind of software is Quire?", "what kind of program is Quire?", "tell me what Quire does.",
            "say what Quire is for.", "say in one sentence what Quire is.", "is Quire a server?",
            "is Quire a model?", "do you know what Quire is?", "what is Quire exactly?",
            "what sort of program is Quire?", "what would you say Quire is?", "who or what is Quire?",
        ),
        ("tell me what Quire is.", "what kind of thing is Quire?", "explain what Quire is.",
        "what sort of server is Quire?"),
    ),
    _fact(
        0.9,
        ABOUT,
        (
            "tell me about Quire.", "tell me more about Quire.", "describe Quire.", "tell me everything about Quire.",
            "what do you know about Quire?", "what can you tell me about Quire?", "talk about Quire.",
            "write about Quire.", "say more about Quire.", "give me a description of Quire.",
            "say something about Quire.", "tell me a bit about Quire.", "tell me something of Quire.",
            "say all you know about Quire.", "what do you think about Quire?", "do you like Quire?",
            "do you know Quire?", "explain all about Quire.", "tell me more of Quire.",
            "write something about Quire.", "I want to know all about Quire.", "tell me the story of Quire.",
            "talk to me about Quire.", "tell me everything you know about Quire.", "say everything about Quire.",
        ),
        ("tell me all about Quire.", "tell me something about Quire.", "tell me all you know about Quire."),
    ),
    _fact(
        0.55,
        SERVICES,
        (
            "what services does Quire have?", "which services are in Quire?", "what are the services of Quire?",
            "how many services does Quire have?", "what are the parts of Quire?", "what parts does Quire have?",
            "name the services of Quire.", "list the parts of Quire.", "how does Quire work?", "how is Quire built?",
            "what is the architecture of Quire?", "name the three services of Quire.",
            "list the three parts of Quire.", "which parts are in Quire?", "tell me the parts of Quire.",
            "tell me the services of Quire.", "what services are in Quire?", "which three services does Quire run?",
        ),
        ("which services does Quire have?", "name the parts of Quire.", "list the services of Quire.",
        "which parts does Quire have?"),
    ),
    _fact(
        0.55,
        NAME,
        (
            "what is a quire?", "what's a quire?", "what does quire mean?", "what does the word quire mean?",
            "where does the name Quire come from?", "why is it called Quire?", "what is the meaning of quire?",
            "explain the name Quire.", "why is Quire called Quire?", "what does the name mean?",
            "what is the meaning of the name Quire?", "say what a quire is.", "tell me what quire means.",
            "tell me what the name Quire means.", "why is it called that?", "why the name Quire?",
            "is a quire a book?", "why is the server called Quire?",
        ),
        ("what does the name Quire mean?", "why is Quire called that?", "tell me what a quire is."),
    ),
    _fact(
        0.55,
        ROUTER,
        (
            "what does the router do?", "what is the router?", "what is the router for?", "what's the router?",
            "explain the router.", "tell me about the router.", "what does the router of Quire do?",
            "describe the router.", "say what the router does.", "what does a router do?",
            "tell me what the router is for.", "what is a router in Quire?", "in Quire, what does the router do?",
            "what is Quire's router?",
        ),
        ("what does Quire's router do?", "tell me what the router does.", "what is the router of Quire?"),
    ),
    _fact(
        0.55,
        SCHEDULER,
        (
            "what does the scheduler do?", "what is the scheduler?", "what is the scheduler for?",
            "what's the scheduler?",
            "explain the scheduler.", "tell me about the scheduler.", "what does the scheduler of Quire do?",
            "describe the scheduler.", "say what the scheduler does.", "what does a scheduler do?",
            "tell me what the scheduler is for.", "what is a scheduler in Quire?",
            "in Quire, what does the scheduler do?", "what is Quire's scheduler?",
        ),
        ("what does Quire's scheduler do?", "tell me what the scheduler does.", "what is the scheduler of Quire?"),
    ),
    _fact(
        0.55,
        WORKER,
        (
            "what does the worker do?", "what do the workers do?", "what is a worker?", "what are the workers for?",
            "what is the worker for?", "explain the workers.", "tell me about the workers.", "describe the workers.",
            "what do the workers of Quire do?", "say what the workers do.", "what do workers do?",
            "tell me what the workers are for.", "what is a worker in Quire?", "in Quire, what do the workers do?",
            "what are Quire's workers?", "tell me what a worker does.", "what does Quire's worker do?",
        ),
        ("what do Quire's workers do?", "tell me what the workers do.", "what does a worker do?"),
    ),
    _fact(
        0.55,
        API,
        (
            "what API does Quire speak?", "which API does Quire have?", "how do I talk to Quire?",
            "which API do I use?",
            "does Quire speak OpenAI's API?", "can I use OpenAI's client with Quire?", "how can I call Quire?",
            "what API is it?", "what is the API of Quire?", "how do I use Quire?", "what API does it speak?",
            "what API can I use?", "tell me which API Quire speaks.", "which API is spoken by Quire?",
            "can I use the OpenAI client?", "can I use an OpenAI client?", "does Quire have an API?",
            "is there an API?", "which client can I use with Quire?", "can a client of OpenAI use Quire?",
        ),
        ("which API does Quire speak?", "what API does Quire have?", "can I use an OpenAI client with Quire?"),
    ),
    _fact(
        0.55,
        FAILURE,
        (
            "what happens if a part of Quire dies?", "what happens when a worker dies?",
            "what happens if the scheduler dies?",
            "what if a router dies?", "can Quire lose my work?", "what happens when a part fails?",
            "what if a worker fails?",
            "can parts of Quire be replaced?", "can Quire scale?", "is Quire safe when a part dies?",
            "what happens if it dies?", "what if the scheduler dies?", "what happens if a part dies?",
            "what happens when the scheduler dies?", "what happens if the router dies?", "what if a worker dies?",
            "what if a part dies?", "what happens when part of Quire fails?", "what happens if a router fails?",
            "tell me what happens if a part dies.",
        ),
        ("what happens when a part dies?", "what happens if a worker dies?", "what if a part of Quire dies?",
        "what happens when the router dies?"),
    ),
)  # fmt: skip
