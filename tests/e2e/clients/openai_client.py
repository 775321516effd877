"""A program with the previous major version of the openai SDK, which langchain and others still require."""

from __future__ import annotations

import json
import sys

from openai import BadRequestError, OpenAI

QUESTION = [{"role": "user", "content": "What is 2 plus 3?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "judge",
        "parameters": {
            "type": "object",
            "properties": {"verdict": {"type": "string", "enum": ["yes", "no"]}},
            "required": ["verdict"],
            "additionalProperties": False,
        },
    },
}
# The model is not trained to call tools and would make several calls.
ONE_CALL = {"tool_choice": "required", "parallel_tool_calls": False}


def main(url: str, name: str, part: str) -> object:
    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    options = {"model": name, "messages": QUESTION, "temperature": 0}
    match part:
        case "chat":
            answer = client.chat.completions.create(**options)
            return {"text": answer.choices[0].message.content, "tokens": answer.usage.total_tokens}
        case "stream":
            stream = client.chat.completions.create(stream=True, **options)
            return {"pieces": [chunk.choices[0].delta.content or "" for chunk in stream]}
        case "error":
            try:
                client.chat.completions.create(top_p=7, **options)
            except BadRequestError as error:
                return {"status": error.status_code, "param": error.param}
        case "structured":
            answer = client.chat.completions.create(tools=[TOOL], **ONE_CALL, **options)
            (tool_call,) = answer.choices[0].message.tool_calls
            return {"name": tool_call.function.name, **json.loads(tool_call.function.arguments)}
    raise ValueError(part)


if __name__ == "__main__":
    print(json.dumps({part: main(*sys.argv[1:3], part) for part in sys.argv[3:]}))
