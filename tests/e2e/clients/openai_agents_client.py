"""A program with OpenAI's agents, over the Responses API and over chat completions."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI, BadRequestError

QUESTION = "What is 2 plus 3?"
RUN = RunConfig(tracing_disabled=True)


async def main(url: str, name: str, part: str) -> object:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    responses = OpenAIResponsesModel(name, client)
    match part:
        case "chat":
            agent = Agent("a", model=responses, model_settings=ModelSettings(temperature=0))
            answer = await Runner.run(agent, QUESTION, run_config=RUN)
            return {"text": answer.final_output, "tokens": answer.context_wrapper.usage.total_tokens}
        case "stream":
            model = OpenAIChatCompletionsModel(name, client)
            agent = Agent("a", model=model, model_settings=ModelSettings(temperature=0))
            answer = Runner.run_streamed(agent, QUESTION, run_config=RUN)
            events = [event.data async for event in answer.stream_events() if event.type == "raw_response_event"]
            return {"pieces": [event.delta for event in events if event.type == "response.output_text.delta"]}
        case "error":
            agent = Agent("a", model=responses, model_settings=ModelSettings(top_p=7))
            try:
                await Runner.run(agent, QUESTION, run_config=RUN)
            except BadRequestError as error:
                return {"status": error.status_code, "param": error.param}
        case "structured":
            called = []

            @function_tool
            def judge(verdict: Literal["yes", "no"]) -> str:
                called.append("judge")
                return verdict

            settings = ModelSettings(temperature=0, tool_choice="required", parallel_tool_calls=False)
            agent = Agent(
                "a", model=responses, model_settings=settings, tools=[judge], tool_use_behavior="stop_on_first_tool"
            )
            answer = await Runner.run(agent, QUESTION, run_config=RUN)
            return {"name": called[0], "verdict": answer.final_output}
    raise ValueError(part)


async def all_parts(url: str, name: str, *parts: str) -> None:
    print(json.dumps({part: await main(url, name, part) for part in parts}))


if __name__ == "__main__":
    asyncio.run(all_parts(*sys.argv[1:]))
