"""A program with huggingface_hub's client, which names a tool to call without the `type` that OpenAI's API requires."""

from __future__ import annotations

import json
import sys

from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError

QUESTION = [{"role": "user", "content": "What is 2 plus 3?"}]
VERDICT = {
    "type": "object",
    "properties": {"verdict": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["verdict"],
    "additionalProperties": False,
}
JUDGE = {"type": "function", "function": {"name": "judge", "description": "Judges.", "parameters": VERDICT}}


def main(client: InferenceClient, model: str, part: str) -> object:
    match part:
        case "chat":
            answer = client.chat_completion(QUESTION, model=model, temperature=0)
            return {"text": answer.choices[0].message.content, "tokens": answer.usage.total_tokens}
        case "stream":
            stream = client.chat_completion(QUESTION, model=model, temperature=0, stream=True)
            return {"pieces": [chunk.choices[0].delta.content or "" for chunk in stream]}
        case "error":
            try:
                client.chat_completion(QUESTION, model=model, top_p=7)
            except BadRequestError as error:
                return {"status": error.response.status_code, "param": error.response.json()["error"]["param"]}
        case "structured":
            choice = {"function": {"name": "judge"}}
            answer = client.chat_completion(QUESTION, model=model, temperature=0, tools=[JUDGE], tool_choice=choice)
            (call,) = answer.choices[0].message.tool_calls
            return {"name": call.function.name, **json.loads(call.function.arguments)}
    raise ValueError(part)


if __name__ == "__main__":
    client = InferenceClient(base_url=sys.argv[1], api_key="none")
    print(json.dumps({part: main(client, sys.argv[2], part) for part in sys.argv[3:]}))
