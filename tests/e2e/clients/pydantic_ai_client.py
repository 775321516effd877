"""A program with pydantic-ai's agents, for which the server is an OpenAI-compatible provider."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Literal

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "What is 2 plus 3?"


class Judgement(BaseModel):
    verdict: Literal["yes", "no"]


async def main(url: str, name: str, part: str) -> object:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    model = OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client), settings={"temperature": 0})
    match part:
        case "chat":
            answer = await Agent(model).run(QUESTION)
            return {"text": answer.output, "tokens": answer.usage.total_tokens}
        case "stream":
            async with Agent(model).run_stream(QUESTION) as answer:
                return {"pieces": [piece async for piece in answer.stream_text(delta=True, debounce_by=None)]}
        case "error":
            try:
                await Agent(model).run(QUESTION, model_settings={"top_p": 7})
            except ModelHTTPError as error:
                return {"status": error.status_code, "param": error.body["param"]}
        case "structured":
            # The agent forces a call of one tool, whose arguments are the output.
            agent = Agent(model, output_type=ToolOutput(Judgement, name="judge"), retries=0)
            answer = await agent.run(QUESTION)
            return {"name": "judge", **answer.output.model_dump()}
    raise ValueError(part)


async def all_parts(url: str, name: str, *parts: str) -> None:
    print(json.dumps({part: await main(url, name, part) for part in parts}))


if __name__ == "__main__":
    asyncio.run(all_parts(*sys.argv[1:]))
