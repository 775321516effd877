"""A program with instructor and OpenAI's client."""

from __future__ import annotations

import json
import sys
from typing import Literal

import instructor
from instructor.core import InstructorRetryException
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "What is 2 plus 3?"}]


class Judgement(BaseModel):
    verdict: Literal["yes", "no"]


def main(url: str, name: str, part: str) -> object:
    client = instructor.from_openai(OpenAI(base_url=url, api_key="none", max_retries=0))
    options = {"model": name, "messages": QUESTION, "temperature": 0}
    match part:
        case "chat":
            answer = client.create(response_model=None, **options)
            return {"text": answer.choices[0].message.content, "tokens": answer.usage.total_tokens}
        case "stream":
            stream = client.create(response_model=None, stream=True, **options)
            return {"pieces": [chunk.choices[0].delta.content or "" for chunk in stream]}
        case "error":
            try:
                client.create(response_model=None, top_p=7, **options)
            except (BadRequestError, InstructorRetryException) as raised:
                error = raised if isinstance(raised, BadRequestError) else raised.__cause__
                return {"status": error.status_code, "param": error.param}
        case "structured":
            return {"name": "judge", **client.create(response_model=Judgement, max_retries=0, **options).model_dump()}
    raise ValueError(part)


if __name__ == "__main__":
    print(json.dumps({part: main(*sys.argv[1:3], part) for part in sys.argv[3:]}))
