"""Uses LangChain's ChatOpenAI with a prompt template, without and with streaming: pip install langchain-openai"""

from __future__ import annotations

import argparse

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where quire serve listens")
    arguments = parser.parse_args()

    base_url = f"{arguments.url}/v1"
    name = OpenAI(base_url=base_url, api_key="none").models.list().data[0].id
    model = ChatOpenAI(base_url=base_url, api_key="none", model=name, temperature=0, max_tokens=40)
    prompt = ChatPromptTemplate([("system", "You are a helpful assistant."), ("user", "What is {a} plus {b}?")])
    chain = prompt | model
    print("whole:   ", chain.invoke({"a": 7, "b": 5}).content)
    print("streamed: ", end="")
    for chunk in chain.stream({"a": 2, "b": 3}):
        print(chunk.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
