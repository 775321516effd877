"""Sends several prompts in one request. The server computes them in one batch."""

from __future__ import annotations

import argparse

from openai import OpenAI

PROMPTS = ["Once upon a time", "One, two, three,", "Count from 3", "The capital of France is"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where quire serve listens")
    arguments = parser.parse_args()

    client = OpenAI(base_url=f"{arguments.url}/v1", api_key="none")
    model = client.models.list().data[0].id
    result = client.completions.create(model=model, prompt=PROMPTS, max_tokens=30, temperature=0)
    # The index of a choice is the index of its prompt.
    for choice in sorted(result.choices, key=lambda choice: choice.index):
        print(f"{PROMPTS[choice.index]!r} -> {choice.text!r}")
    if result.usage is not None:
        print(f"{result.usage.prompt_tokens} prompt tokens, {result.usage.completion_tokens} generated")


if __name__ == "__main__":
    main()
