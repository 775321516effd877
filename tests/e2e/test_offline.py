"""`LLM` with the bundled model: a stack of its own, parts that die, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from quire import (
    LLM,
    PoolingParams,
    QuireError,
    RequestOutput,
    SamplingParams,
    StackError,
    StructuredOutputsParams,
)
from quire.offline import llm as llm_module
from quire.offline.prompts import PromptLike
from tests.e2e.conftest import ROOT
from tests.e2e.parts import part_of
from tests.fakes.waiting import HANG_S
from tests.unit.cli.processes import children, is_running, until_ended, with_environment
from tests.unit.worker.tiny_encoders import hidden_states, normalized

CHAT_MODEL = ROOT / "quire" / "models" / "quire-chat"
SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 64 << 20, "num_threads": 1}
PROMPTS = [f"Count from {number} to 60." for number in range(24)]
GREEDY = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(**SMALL) as running:
        yield running


def keeper_of(llm: LLM) -> int:
    """Of the one LLM of this process."""
    (keeper,) = (pid for pid in children(os.getpid()) if b"quire.offline.keeper" in _command(pid))
    return keeper


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_outputs_have_vllms_shape(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=2, n=2)
    prompts: list[PromptLike] = ["Count from 3", {"prompt_token_ids": [5, 6, 7]}]
    by_text, by_ids = llm.generate(prompts, params, use_tqdm=False)

    assert int(by_ids.request_id) == int(by_text.request_id) + 1
    assert (by_text.prompt, by_ids.prompt) == ("Count from 3", None)
    assert by_ids.prompt_token_ids == [5, 6, 7]
    assert by_text.finished
    first, second = by_text.outputs
    assert (first.index, second.index) == (0, 1)
    assert first.token_ids == second.token_ids
    assert first.logprobs is not None
    assert [next(iter(entry)) for entry in first.logprobs] == first.token_ids
    assert all(len(entry) == 2 and next(iter(entry.values())).rank == 1 for entry in first.logprobs)
    assert "".join(str(next(iter(entry.values())).decoded_token) for entry in first.logprobs) == first.text
    assert first.cumulative_logprob == sum(next(iter(entry.values())).logprob for entry in first.logprobs)
    assert (first.finish_reason, first.stop_reason) == ("length", None)


def test_metrics_tell_when_things_happened(llm: LLM) -> None:
    before = time.time()
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    after = time.time()

    for output in outputs:
        times = output.metrics
        assert times is not None
        assert times.first_scheduled_time is not None
        assert times.first_token_time is not None
        assert times.last_token_time is not None
        assert before <= times.arrival_time <= times.first_scheduled_time <= times.first_token_time
        assert times.first_token_time <= times.last_token_time <= times.finished_time
        # Another clock measured it, read at another moment between the two.
        assert times.finished_time <= after + (after - before)
        assert times.time_in_queue == times.first_scheduled_time - times.arrival_time
        assert times.first_token_latency == times.first_token_time - times.arrival_time
        assert times.num_generation_tokens == len(output.outputs[0].token_ids)


def test_a_prompt_as_text_and_as_its_token_ids_is_the_same(llm: LLM) -> None:
    (by_text,) = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    (by_ids,) = llm.generate(by_text.prompt_token_ids, GREEDY, use_tqdm=False)

    assert by_ids.prompt_token_ids == by_text.prompt_token_ids
    assert by_ids.outputs == by_text.outputs
    assert by_ids.num_cached_tokens >= 0


def test_chats_and_their_ends(llm: LLM) -> None:
    def ask(**options: Any) -> RequestOutput:
        (output,) = llm.chat(
            [{"role": "user", "content": [{"type": "text", "text": "What is 7 plus 5?"}]}],
            SamplingParams(temperature=0, max_tokens=50, **options),
            use_tqdm=False,
        )
        return output

    plain = ask()
    assert plain.prompt is not None
    assert "What is 7 plus 5?" in plain.prompt
    whole = plain.outputs[0]
    assert whole.text == "7 plus 5 is 12."
    assert (whole.finish_reason, whole.stop_reason) == ("stop", None)
    by_string = ask(stop=["nothing", " is", "is"]).outputs[0]
    assert (by_string.text, by_string.finish_reason, by_string.stop_reason) == ("7 plus 5", "stop", " is")
    by_token = ask(stop_token_ids=[whole.token_ids[2]]).outputs[0]
    assert (by_token.token_ids, by_token.stop_reason) == (whole.token_ids[:3], whole.token_ids[2])
    several = llm.chat([[{"role": "user", "content": "Hello!"}]] * 3, GREEDY, use_tqdm=False)
    assert len({output.outputs[0].text for output in several}) == 1


def test_prompts_tell_their_log_probabilities(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=3)
    (first, again) = llm.generate([PROMPTS[0]] * 2, params, use_tqdm=False)

    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert (
        "".join(
            str(entry[token_id].decoded_token)
            for token_id, entry in zip(first.prompt_token_ids, first.prompt_logprobs, strict=True)
            if entry is not None
        )
        == str(first.prompt)[len("Count") :]
    )
    for token_id, entry in zip(first.prompt_token_ids[1:], first.prompt_logprobs[1:], strict=True):
        assert entry is not None
        ranks = sorted(logprob.rank or 0 for logprob in entry.values())
        assert ranks == [1, 2, 3] if len(entry) == 3 else ranks[:3] == [1, 2, 3] and (entry[token_id].rank or 0) > 3
        likeliest_first = sorted(entry.values(), key=lambda logprob: logprob.rank or 0)
        assert [one.logprob for one in likeliest_first] == sorted((one.logprob for one in entry.values()), reverse=True)
    assert again.prompt_logprobs is not None
    assert [entry and list(entry) for entry in again.prompt_logprobs] == [
        entry and list(entry) for entry in first.prompt_logprobs
    ]


def test_outputs_are_held_to_a_structure(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
    by_schema = StructuredOutputsParams(json=schema)
    outputs = llm.generate(
        PROMPTS[:2], SamplingParams(structured_outputs=by_schema, max_tokens=40, n=2, best_of=3), use_tqdm=False
    )
    answers = [completion.text for output in outputs for completion in output.outputs]
    assert len(answers) == 4
    assert all(json.loads(answer)["x"] in (1, 2) for answer in answers)
    choice = SamplingParams(structured_outputs={"choice": ["red", "blue"]})
    assert texts(llm.generate("Colour:", choice, use_tqdm=False))[0] in ("red", "blue")
    with pytest.raises(QuireError, match=r"options\.structure\.regex"):
        llm.generate("x", SamplingParams(structured_outputs={"regex": "("}), use_tqdm=False)


def test_a_conversation_is_continued_and_told_of_tools(llm: LLM) -> None:
    user: dict[str, Any] = {"role": "user", "content": "What is 7 plus 5?"}
    greedy = SamplingParams(temperature=0, max_tokens=20)
    (output,) = llm.chat(
        [user, {"role": "assistant", "content": "7 plus"}], greedy, use_tqdm=False, continue_final_message=True
    )
    assert output.outputs[0].text == " 5 is 12."
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "1", "content": "12"}
    both = [[user], [user, {"role": "assistant", "tool_calls": [call]}, result]]
    told, plain = (llm.chat(both, greedy, tools=tools, use_tqdm=False) for tools in ([tool], None))
    assert all('"add"' in str(output.prompt) for output in told)
    assert ['"add"' in str(output.prompt) for output in plain] == [False, True]
    (own,) = llm.chat([user], greedy, chat_template="{{ a }}{{ messages[0].content }}", chat_template_kwargs={"a": "b"})
    assert own.prompt == "bWhat is 7 plus 5?"


def test_embeddings_and_scores_are_those_of_the_model(llm: LLM) -> None:
    model = transformers.AutoModel.from_pretrained(CHAT_MODEL, dtype=torch.float32).eval()
    prompts: list[PromptLike] = [*PROMPTS[:20], {"prompt_token_ids": [5, 6, 7]}]
    outputs = llm.embed(prompts, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs][-1] == [5, 6, 7]
    for output in (outputs[0], outputs[19], outputs[20]):
        last = hidden_states(model, output.prompt_token_ids)[-1]
        np.testing.assert_allclose(output.outputs.embedding, normalized(last), atol=1e-5)
    (raw,) = llm.embed(PROMPTS[0], pooling_params=PoolingParams(normalize=False), use_tqdm=False)
    np.testing.assert_allclose(raw.outputs.embedding, hidden_states(model, raw.prompt_token_ids)[-1], atol=1e-4)

    cosine = float(np.dot(outputs[0].outputs.embedding, outputs[1].outputs.embedding))
    one, other = llm.score(PROMPTS[0], PROMPTS[:2], use_tqdm=False)
    assert [one.outputs.score, other.outputs.score] == pytest.approx([1, cosine], abs=1e-5)
    assert other.prompt_token_ids == outputs[0].prompt_token_ids + outputs[1].prompt_token_ids
    pairs = llm.score(PROMPTS[:2], PROMPTS[1::-1], use_tqdm=False)
    assert [pair.outputs.score for pair in pairs] == pytest.approx([cosine, cosine], abs=1e-5)
    with pytest.raises(ValueError, match="data_1 has 2 texts: use one, or 3 as in data_2"):
        llm.score(["a", "b"], ["a", "b", "c"])
    with pytest.raises(ValueError, match="pooling_params has 1 entries for 2 prompts"):
        llm.embed(["a", "b"], pooling_params=[PoolingParams()])
    with pytest.raises(QuireError, match="not trained for fewer") as raised:
        llm.embed("a", pooling_params=PoolingParams(dimensions=2), use_tqdm=False)
    assert raised.value.param == "pooling.dimensions"


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (1, 5, 2)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False, priority=[2, 0, 1])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 2]
    assert llm.generate([], use_tqdm=False) == []
    assert len(llm.generate("Hello", use_tqdm=False)[0].outputs[0].token_ids) <= 16
    with pytest.raises(ValueError, match="sampling_params has 3 entries for 2 prompts"):
        llm.generate(["a", "b"], params)
    with pytest.raises(ValueError, match="priority has 1 entries for 2 prompts"):
        llm.generate(["a", "b"], priority=[1])


def test_a_prompt_that_does_not_fit_is_told_by_its_place(llm: LLM) -> None:
    with pytest.raises(QuireError, match="maximum context length") as raised:
        llm.generate(["fits", "x" * 100_000, "fits"], use_tqdm=False)

    assert raised.value.__notes__ == ["The error concerns the prompt with index 1 of 3 prompts."]
    assert raised.value.param == "prompts[1]"
    assert str(raised.value).endswith("Please shorten 'prompts[1]'.")
    with pytest.raises(QuireError, match=r"Please shorten 'messages'\."):
        llm.chat([{"role": "user", "content": "x" * 100_000}], use_tqdm=False)
    with pytest.raises(QuireError, match=r"'data_2\[1\]'"):
        llm.score("a", ["b", "x" * 100_000], use_tqdm=False)
    assert llm.generate("fits", use_tqdm=False)[0].finished


def test_the_models_tokenizer_and_defaults(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    (output,) = llm.generate(tokenizer.encode(PROMPTS[0]), GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)[0].prompt_token_ids
    (answer,) = llm.chat([{"role": "user", "content": "What is 7 plus 5?"}], GREEDY, use_tqdm=False)[0].outputs
    assert answer.text == tokenizer.decode(answer.token_ids, skip_special_tokens=True)
    assert llm.get_tokenizer() is tokenizer
    assert (output.lora_request, output.encoder_prompt) == (None, None)

    params = llm.get_default_sampling_params()
    params.max_tokens = 3
    assert len(llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0].token_ids) <= 3
    params.temperature = -1
    with pytest.raises(ValueError, match=r"^SamplingParams\.temperature is -1"):
        llm.generate(PROMPTS[0], params, use_tqdm=False)


def test_with_a_seed_every_run_is_the_same() -> None:
    def run() -> list[list[int]]:
        with LLM(**SMALL, seed=3) as seeded:
            params = SamplingParams(temperature=2, max_tokens=20, ignore_eos=True)
            return [output.outputs[0].token_ids for output in seeded.generate(["a"] * 3, params, use_tqdm=False)]

    first = run()
    assert len(set(map(tuple, first))) == 3
    assert run() == first


def test_answers_go_on_when_the_worker_dies(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = texts(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    params = [SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), *[GREEDY] * (len(PROMPTS) - 1)]
    num_done = 0

    @contextmanager
    def killing(what: str, total: int, *, is_shown: bool) -> Iterator[Callable[[int], None]]:
        def advance(count: int) -> None:
            nonlocal num_done
            if not num_done:
                os.kill(part_of(keeper_of(llm), "worker"), signal.SIGKILL)
            num_done += count

        yield advance

    monkeypatch.setattr(llm_module, "progress_bar", killing)
    outputs = llm.generate(PROMPTS, params)

    assert num_done == len(PROMPTS)
    assert texts(outputs)[1:] == undisturbed[1:]


async def test_it_works_where_a_loop_runs_and_from_threads(llm: LLM) -> None:
    expected = texts(llm.generate(PROMPTS[:4], GREEDY, use_tqdm=False))  # as a notebook's cell would

    async def ask(start: int) -> str:
        (output,) = await asyncio.to_thread(llm.generate, PROMPTS[start], GREEDY, use_tqdm=False)
        return output.outputs[0].text

    assert await asyncio.gather(*map(ask, range(4))) == expected


def test_several_at_once_and_a_closed_one(llm: LLM) -> None:
    expected = texts(llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False))
    before = set(children(os.getpid()))
    with LLM(**SMALL, max_model_len=256) as other:
        (keeper,) = set(children(os.getpid())) - before
        parts = children(keeper)
        assert len(parts) == 3
        assert texts(other.generate(PROMPTS[:2], GREEDY, use_tqdm=False)) == expected
        with pytest.raises(QuireError, match="maximum context length is 256"):
            other.generate("x", SamplingParams(max_tokens=300), use_tqdm=False)

    assert not any(map(is_running, [keeper, *parts]))
    other.close()
    with pytest.raises(RuntimeError, match="this LLM is closed"):
        other.generate("x")
    assert texts(llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False)) == expected


def test_a_stack_that_cannot_start_is_told_in_the_parts_words() -> None:
    with pytest.raises(StackError, match=r"^worker failed: there is no directory /nowhere$"):
        LLM("/nowhere")


# vLLM's quick start; only the import and the model differ.
QUICK_START = f"""
from quire import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)

llm = LLM(model={str(CHAT_MODEL)!r})

outputs = llm.generate(prompts, sampling_params)

for output in outputs:
    prompt = output.prompt
    generated_text = output.outputs[0].text
    print(f"Prompt: {{prompt!r}}, Generated text: {{generated_text!r}}")
    print(f"Tokens/s: {{len(output.outputs[0].token_ids) / output.metrics.finished_time}}")
"""
# Not part of it.
REPORT = """
for output in outputs:
    print(f"Seconds: {output.metrics.finished_time - output.metrics.arrival_time}")
"""


def test_vllms_quick_start_runs(tmp_path: Path) -> None:
    (tmp_path / "quick_start.py").write_text(QUICK_START + REPORT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "quick_start.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )

    assert run.returncode == 0, run.stderr
    assert re.findall("^Prompt: '(Hello|The president|The capital|The future)", run.stdout, re.MULTILINE) == [
        "Hello", "The president", "The capital", "The future",
    ]  # fmt: skip
    assert run.stdout.count("Tokens/s: ") == 4
    seconds = [float(text) for text in re.findall("^Seconds: (.*)$", run.stdout, re.MULTILINE)]
    assert len(seconds) == 4
    assert min(seconds) > 0


PROGRAM = """
import os, sys
from quire import LLM, SamplingParams
llm = LLM(kv_cache_memory_bytes=64 << 20, num_threads=1)
if os.fork() == 0:
    sys.exit()  # A forked process stops nothing.
os.wait()
print(llm.generate("Hello", SamplingParams(temperature=0, max_tokens=4))[0].outputs[0].text, flush=True)
"""


@pytest.mark.parametrize("end", ["", "sys.stdin.read()"], ids=["exits", "is killed"])
async def test_nothing_is_left_of_a_program_that(end: str, tmp_path: Path) -> None:
    mark = f"QUIRE_TEST_OF={tmp_path}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM + end),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "QUIRE_TEST_OF": str(tmp_path)},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"! I am a\n"
    if end:
        assert len(with_environment(mark)) == 5  # the program, the keeper and three parts
        process.kill()
    _, told = await process.communicate()

    assert b"Traceback" not in told
    assert process.returncode == (-9 if end else 0)
    await until_ended(with_environment(mark))
