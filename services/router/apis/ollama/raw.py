"""/api/generate with a raw prompt, which goes to the model without the chat template."""

from __future__ import annotations

from typing import Any

from services.router.apis.ollama.generate import MAX_TOKENS_PARAM, GenerateBody
from services.router.apis.ollama.options import refuse
from services.router.apis.ollama.writer import OllamaWriter
from services.router.chat import PlainParser
from services.router.generation import Tracing
from services.router.http import Answers, MessageWriter
from services.router.model import ServedModel
from services.router.prompt import encode_text, output_budget
from services.router.rpc import Prepared, caller_of


async def answer_raw(
    body: GenerateBody, model: ServedModel, answers: Answers, tracing: Tracing, context: Any, writer: OllamaWriter
) -> Prepared:
    """Prepares the answer to a raw prompt. Raises ApiError."""
    # A system message needs a chat template, which a raw prompt does not use.
    refuse("system", body.system)
    caller, options = caller_of(context), body.generation_options()
    with tracing.request("text_completion", model.info.name, caller) as span:
        prompt = await encode_text(model, body.prompt or "", "prompt")
        params = ("prompt", MAX_TOKENS_PARAM)
        max_tokens = output_budget(model.info, len(prompt), options.stop.max_tokens, params, clamps=True)
        request = await options.request(model, caller, span.traceparent, (prompt,), (max_tokens,))
        whole = MessageWriter([PlainParser()], writer, prompt)
        return span.prepared(answers.send, request, span, context, whole, stream=body.is_streamed)
