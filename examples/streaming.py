"""Streams one completion and prints the time to its first token."""

from __future__ import annotations

import argparse
import time

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where quire serve listens")
    parser.add_argument("--prompt", default="Tell me a story about a fox.")
    arguments = parser.parse_args()

    client = OpenAI(base_url=f"{arguments.url}/v1", api_key="none")
    model = client.models.list().data[0].id
    start = time.perf_counter()
    first = None
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": arguments.prompt}],
        max_tokens=100,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        first = first or time.perf_counter()
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        if chunk.usage is not None and first is not None:
            milliseconds = 1000 * (first - start)
            print(f"\n\n{chunk.usage.completion_tokens} tokens, the first after {milliseconds:.0f} ms")


if __name__ == "__main__":
    main()
