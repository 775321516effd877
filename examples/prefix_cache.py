"""Asks two questions about one long text. The second request finds the text's KV blocks in the prefix cache."""

from __future__ import annotations

import argparse
import uuid

from openai import OpenAI

QUESTIONS = ["What is this text about?", "How many rules are there?"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where quire serve listens")
    arguments = parser.parse_args()

    client = OpenAI(base_url=f"{arguments.url}/v1", api_key="none")
    model = client.models.list().data[0].id
    # A new text for each run, so that the first request finds no cached blocks.
    text = f"Handbook {uuid.uuid4()}. " + " ".join(f"Rule {number}: be kind." for number in range(1, 21))
    for question in QUESTIONS:
        result = client.chat.completions.create(
            model=model,
            messages=[{"role": "system", "content": text}, {"role": "user", "content": question}],
            max_tokens=16,
        )
        usage = result.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached = usage.prompt_tokens_details.cached_tokens
        print(f"{question} cached_tokens: {cached} of {usage.prompt_tokens}")


if __name__ == "__main__":
    main()
