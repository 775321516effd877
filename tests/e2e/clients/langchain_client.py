"""A program with langchain-openai's ChatOpenAI."""

from __future__ import annotations

import json
import sys
from typing import Literal

from langchain_openai import ChatOpenAI
from openai import BadRequestError
from pydantic import BaseModel

QUESTION = "What is 2 plus 3?"


class Judgement(BaseModel):
    verdict: Literal["yes", "no"]


def main(url: str, name: str, part: str) -> object:
    model = ChatOpenAI(base_url=url, api_key="none", model=name, temperature=0, max_retries=0)
    match part:
        case "chat":
            answer = model.invoke(QUESTION)
            return {"text": answer.content, "tokens": answer.usage_metadata["total_tokens"]}
        case "stream":
            return {"pieces": [chunk.content for chunk in model.stream(QUESTION)]}
        case "error":
            try:
                model.bind(top_p=7).invoke(QUESTION)
            except BadRequestError as error:
                return {"status": error.status_code, "param": error.param}
        case "structured":
            return {
                "name": "judge",
                **model.with_structured_output(Judgement, method="json_schema").invoke(QUESTION).model_dump(),
            }
    raise ValueError(part)


if __name__ == "__main__":
    print(json.dumps({part: main(*sys.argv[1:3], part) for part in sys.argv[3:]}))
