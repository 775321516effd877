"""Chats in the terminal. The server does not store conversations: every request contains the history."""

from __future__ import annotations

import argparse
import sys

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where quire serve listens")
    parser.add_argument("--system", default="You are a helpful assistant.", help="the system prompt")
    arguments = parser.parse_args()

    client = OpenAI(base_url=f"{arguments.url}/v1", api_key="none")
    model = client.models.list().data[0].id
    history: list[ChatCompletionMessageParam] = [{"role": "system", "content": arguments.system}]
    print(f"Chatting with {model}. An empty line ends the chat.")
    while True:
        print("> ", end="", flush=True)
        question = sys.stdin.readline().strip()
        if not question:
            return
        history.append({"role": "user", "content": question})
        answer = ""
        for chunk in client.chat.completions.create(model=model, messages=history, max_tokens=200, stream=True):
            piece = (chunk.choices[0].delta.content if chunk.choices else None) or ""
            print(piece, end="", flush=True)
            answer += piece
        print()
        history.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main()
