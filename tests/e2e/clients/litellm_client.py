"""A program with litellm, for which the server is an OpenAI-compatible provider."""

from __future__ import annotations

import json
import sys

import litellm

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
    options = {"model": f"openai/{name}", "api_base": url, "api_key": "none", "temperature": 0, "num_retries": 0}
    match part:
        case "chat":
            answer = litellm.completion(messages=QUESTION, **options)
            return {"text": answer.choices[0].message.content, "tokens": answer.usage.total_tokens}
        case "stream":
            stream = litellm.completion(messages=QUESTION, stream=True, **options)
            return {"pieces": [chunk.choices[0].delta.content or "" for chunk in stream]}
        case "error":
            try:
                litellm.completion(messages=QUESTION, top_p=7, **options)
            except litellm.BadRequestError as error:
                return {"status": error.status_code, "param": "top_p" if "'top_p'" in str(error) else None}
        case "structured":
            answer = litellm.completion(messages=QUESTION, tools=[TOOL], **ONE_CALL, **options)
            (tool_call,) = answer.choices[0].message.tool_calls
            return {"name": tool_call.function.name, **json.loads(tool_call.function.arguments)}
    raise ValueError(part)


if __name__ == "__main__":
    print(json.dumps({part: main(*sys.argv[1:3], part) for part in sys.argv[3:]}))
