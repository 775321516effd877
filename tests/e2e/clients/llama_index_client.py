"""A program with LlamaIndex's OpenAILike."""

from __future__ import annotations

import json
import sys
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from openai import BadRequestError
from pydantic import BaseModel

QUESTION = [ChatMessage("What is 2 plus 3?")]


class Judgement(BaseModel):
    verdict: Literal["yes", "no"]


def main(url: str, name: str, part: str) -> object:
    options = {"is_chat_model": True, "is_function_calling_model": True, "temperature": 0, "max_retries": 0}
    model = OpenAILike(model=name, api_base=url, api_key="none", **options)
    match part:
        case "chat":
            answer = model.chat(QUESTION)
            return {"text": answer.message.content, "tokens": answer.raw.usage.total_tokens}
        case "stream":
            return {"pieces": [chunk.delta or "" for chunk in model.stream_chat(QUESTION)]}
        case "error":
            try:
                model.chat(QUESTION, top_p=7)
            except BadRequestError as error:
                return {"status": error.status_code, "param": error.param}
        case "structured":
            answer = model.as_structured_llm(Judgement).chat(QUESTION)
            return {"name": "judge", **answer.raw.model_dump()}
    raise ValueError(part)


if __name__ == "__main__":
    print(json.dumps({part: main(*sys.argv[1:3], part) for part in sys.argv[3:]}))
