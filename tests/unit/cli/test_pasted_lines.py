"""Command lines as vLLM's users have them, and what `quire serve` makes of each.

The tables of docs/coming-from-vllm.md are made here: `QUIRE_WRITE_DOCS=1 pytest` with this file writes them.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from quire.cli import serve
from quire.cli.calibrate import CalibrateConfig
from quire.cli.estimate import EstimateConfig
from quire.cli.stack import Stack
from quire.cli.stack_options import build_stack
from quire.cli.vllm_option import Form, VllmOption
from quire.cli.vllm_options import OPTIONS
from services.worker.config import WorkerConfig
from shared.config import ConfigError, resolve

PAGE = Path(__file__).parents[3] / "docs/coming-from-vllm.md"
ACCEPTED = "accepted"

SWALLOWED_BY_KEYS = (
    "quire serve: --api-key takes every word up to the next flag, and one of them may be the model: give the model "
    "before --api-key or with --model, and each value a --api-key of its own"
)


def swallowed(flag: str, word: str) -> str:
    return (
        f"quire serve: {flag} takes every word up to the next flag, {word!r} too: give the model before it, or with "
        f"--model; if {word!r} is no model, give it a {flag} of its own"
    )


# The words after `quire serve`, and what is said of them: "accepted", or the whole of the notes or errors.
LINES = {
    "--model meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 4 --gpu-memory-utilization 0.90 "
    "--max-num-batched-tokens 8192 --max-num-seqs 256 --max-model-len 4096 --block-size 16 --swap-space 4 "
    "--enforce-eager": "--tensor-parallel-size is not implemented yet; leave it out",
    "--model meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 1 --gpu-memory-utilization 0.90 "
    "--max-num-batched-tokens 8192 --max-num-seqs 256 --max-model-len 4096 --block-size 16 --swap-space 4 "
    "--enforce-eager": ACCEPTED,
    "meta-llama/Llama-3.1-8B-Instruct -tp 2 -pp 2": "--tensor-parallel-size and --pipeline-parallel-size are not "
    "implemented yet; leave them out",
    "--model TheBloke/Llama-2-7B-AWQ --quantization awq --dtype auto": ACCEPTED,
    "TheBloke/Llama-2-7B-AWQ -q awq_marlin --dtype half": ACCEPTED,
    "--model Qwen/Qwen3-8B --enable-prefix-caching --enable-chunked-prefill --max-num-batched-tokens 2048": ACCEPTED,
    "Qwen/Qwen3-8B --enable-chunked-prefill false --max_model_len 4k": ACCEPTED,
    "Qwen/Qwen3-8B --no-enable-chunked-prefill --enable-prefix-caching=True --max-model-len 4K": ACCEPTED,
    "Qwen/Qwen3-8B --no-enable-chunked-prefill": ACCEPTED,
    "Qwen/Qwen3-8B --no-enable-chunked-prefill --max-model-len 4096 --max-num-batched-tokens 2048": (
        "--no-enable-chunked-prefill computes each prompt in one step, but --max-model-len is 4096 and "
        "--max-num-batched-tokens 2048; raise --max-num-batched-tokens or lower --max-model-len"
    ),
    "Qwen/Qwen3-8B -dp 2 --api-server-count 2 --device cpu": ACCEPTED,
    "Qwen/Qwen3-8B --data-parallel-size 4 --data-parallel-size-local 2 --device cpu": (
        "--data-parallel-size-local is 2, but there are 4 workers (--workers, --data-parallel-size): quire serve runs "
        "all of them on this host. For several hosts, start the parts one by one (docs/operations.md)"
    ),
    "Qwen/Qwen3-8B --enable-lora --lora-modules a=/x b=/y c=/z --max-loras 3 --max-lora-rank 64": "--enable-lora, "
    "--lora-modules, --max-loras and --max-lora-rank are not implemented yet; leave them out",
    "Qwen/Qwen3-8B --speculative-model X --num-speculative-tokens 5 --speculative-draft-tensor-parallel-size 1": (
        "--speculative-model, --num-speculative-tokens and --speculative-draft-tensor-parallel-size are not "
        "implemented yet; leave them out"
    ),
    "Qwen/Qwen3-8B --served-model-name a b": ACCEPTED,
    "--served-model-name a b --model Qwen/Qwen3-8B": ACCEPTED,
    "--served-model-name a b Qwen/Qwen3-8B": swallowed("--served-model-name", "Qwen/Qwen3-8B"),
    "--served-model-name a Qwen/Qwen3-8B --port 8000": swallowed("--served-model-name", "Qwen/Qwen3-8B"),
    "--served-model-name a gpt2": swallowed("--served-model-name", "gpt2"),
    "--served-model-name a --served-model-name b": ACCEPTED,
    "--host 0.0.0.0 --api-key k Qwen/Qwen3-8B --max-model-len 4096": SWALLOWED_BY_KEYS,
    "--api-key k gpt2 --port 8000": SWALLOWED_BY_KEYS,
    "--host 0.0.0.0 --api-key k1/k2": ACCEPTED,
    "--model Qwen/Qwen3-8B --api-key k Qwen/Qwen3-8B --port 8000": SWALLOWED_BY_KEYS,
    "--allowed-origins https://a.example https://b.example --api-key k1 --api-key k2": ACCEPTED,
    "--cudagraph-capture-sizes 1 2 Qwen/Qwen3-8B --port 8000": swallowed("--cudagraph-capture-sizes", "Qwen/Qwen3-8B"),
    "--model Qwen/Qwen3-8B --num-scheduler-steps 1": ACCEPTED,
    "--model Qwen/Qwen3-8B --num-scheduler-steps 8": "--num-scheduler-steps is 8: use 1; instead of planning several "
    "steps at once, the scheduler keeps several plans in flight (--run-ahead)",
    "--model Qwen/Qwen3-8B --host 0.0.0.0 --port 8000 --api-key k": ACCEPTED,
    "Qwen/Qwen3-8B --api-key k1 k2 --allowed-origins https://a.example https://b.example": ACCEPTED,
    "--model Qwen/Qwen3-8B --trust-remote-code": "--trust-remote-code cannot be used: Quire runs no code that comes "
    "with a model or from elsewhere; leave it out",
    "--model Qwen/Qwen3-8B --disable-log-requests": ACCEPTED,
    "Qwen/Qwen3-8B --no-enable-log-requests --disable-log-stats --max-log-len 100": "--max-log-len changes nothing: "
    "-v --log-prompts 200 logs the first 200 characters of prompts",
    "Qwen/Qwen3-8B --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3": ACCEPTED,
    "Qwen/Qwen3-8B --generation-config vllm --chat-template ./template.jinja --download-dir /models": ACCEPTED,
    "Qwen/Qwen3-8B --kv-cache-dtype fp8_e4m3 --seed 42": "--seed changes nothing: each request without a seed of its "
    "own draws one; send seed in requests to repeat answers",
    "Qwen/Qwen3-8B --disable-frontend-multiprocessing --uvicorn-log-level warning -O3": (
        "--disable-frontend-multiprocessing changes nothing: gateway, router, scheduler and worker are always "
        "processes; --optimization-level changes nothing: kernels are compiled ahead of time; "
        "--enforce-eager turns CUDA graphs off; --uvicorn-log-level changes nothing: Envoy serves HTTP; use --log-level"
    ),
    "Qwen/Qwen2-VL-7B --limit-mm-per-prompt image=4 --ssl-keyfile k.pem -tp 2": (
        "--tensor-parallel-size is not implemented yet; leave it out; --limit-mm-per-prompt cannot be used: Quire "
        "serves text only: there are no images, videos or sounds to configure; --ssl-keyfile cannot be used: Quire "
        "serves no TLS; terminate TLS in a reverse proxy in front of it"
    ),
    "Qwen/Qwen3-8B --device cuda --load-format safetensors --revision main --gpu-memory-utilization 0.98": ACCEPTED,
    "Qwen/Qwen3-8B --preemption-mode swap --swap-space 0": "--preemption-mode is swap, but there is no swap space; set "
    "--swap-space, or use auto",
    "Qwen/Qwen3-8B --enable-prefix-caching 0 --enforce_eager yes --enable-chunked-prefill=1": ACCEPTED,
    "Qwen/Qwen3-8B --compilation-config.mode 3 --structured-outputs-config.backend=xgrammar -cc.cudagraph_mode=NONE": (
        "--structured-outputs-config changes nothing: llguidance enforces every structure; --compilation-config "
        "changes nothing: kernels are compiled ahead of time; --enforce-eager turns CUDA graphs off"
    ),
    "Qwen/Qwen3-8B --speculative-config.method ngram": "--speculative-config cannot be used: speculative decoding is "
    "not implemented yet",
    "Qwen/Qwen3-8B --hf-token --enable-tokenizer-info-endpoint --logprobs-mode raw_logprobs": ACCEPTED,
    "Qwen/Qwen3-8B --hf-token secret": "--hf-token cannot be used: a key does not belong on a command line; set "
    "HF_TOKEN",
    "Qwen/Qwen3-8B --max-num-partial-prefills 1 --max-long-partial-prefills 1 --long-prefill-token-threshold 0": (
        ACCEPTED
    ),
    "Qwen/Qwen3-8B --max-seq-len 4096": "quire serve: there is no option --max-seq-len; did you mean --max-model-len?",
    "Qwen/Qwen3-8B --quantization bitsandbytes": "--quantization is 'bitsandbytes', which is not supported: "
    "use the unquantized checkpoint, if need be with --quantization int4 or int8-weight-only",
}


def parse(line: str) -> Stack:
    flags = vars(serve._parser().parse_args(shlex.split(line)))
    assert flags.pop("config") is None
    flags.pop("verbose")
    return build_stack(flags, {})


def result(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        notes = parse(line).notes
    except ConfigError as error:
        return str(error).replace("\n", "; ")
    except SystemExit:
        return capsys.readouterr().err.strip()
    return "; ".join(notes) or ACCEPTED


@pytest.mark.parametrize("line", LINES)
def test_a_pasted_line_is_accepted_or_refused_by_name(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert result(line, capsys) == LINES[line]


def test_the_values_arrive() -> None:
    stack = parse(
        "--served_model_name a b --model m --max_model_len 25.6k --dtype half -q gptq_marlin --api-key k1 k2 "
        "--api-key k3 --enable-prefix-caching False --kv-cache-memory-bytes 2G --max-num-seqs 128 --num-threads auto"
    )
    worker, router = stack.configs["worker"], stack.configs["router"]

    assert (worker.model, worker.served_model_name, worker.max_model_len) == ("m", ("a", "b"), 25_600)
    assert (worker.dtype, worker.quantization, worker.kv_cache_memory_bytes) == ("float16", "gptq", 2 * 2**30)
    assert (worker.max_num_seqs, worker.num_threads) == (128, None)
    assert router.api_key == ("k1", "k2", "k3")
    assert stack.configs["scheduler"].enable_prefix_caching is False


@pytest.mark.parametrize("config_class", [WorkerConfig, CalibrateConfig, EstimateConfig])
def test_the_model_is_an_argument_or_a_flag_of_other_commands_too(config_class: type) -> None:
    for words in (
        ["org/model"],
        ["--model", "org/model"],
        ["--dtype", "half", "--model=org/model", "-q", "awq_marlin"],
    ):
        assert resolve(config_class, words, prog="quire", description="").model == "org/model"


def test_chunked_prefill_can_be_switched_off_in_every_form() -> None:
    for form in ("--no-enable-chunked-prefill", "--enable-chunked-prefill false", "--enable_chunked_prefill=False"):
        stack = parse(f"m {form} --max-model-len 4096")
        assert stack.configs["scheduler"].enable_chunked_prefill is False
        assert stack.configs["worker"].enable_chunked_prefill is False
    for form in ("", "--enable-chunked-prefill", "--enable-chunked-prefill true", "--no-enable-chunked-prefill false"):
        assert parse(f"m {form}").configs["scheduler"].enable_chunked_prefill is True


def test_options_of_vllms_are_found_in_the_environment_and_the_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_SEED", "1")
    assert build_stack({}, {}).notes[0].startswith("QUIRE_SEED changes nothing: ")
    assert build_stack({"seed": "2"}, {"seed": 3}).notes[0].startswith("--seed changes nothing: ")

    monkeypatch.setenv("QUIRE_TRUST_REMOTE_CODE", "no")
    build_stack({}, {})
    monkeypatch.setenv("QUIRE_TRUST_REMOTE_CODE", "1")
    with pytest.raises(ConfigError, match=r"^QUIRE_TRUST_REMOTE_CODE cannot be used: "):
        build_stack({}, {})
    monkeypatch.setenv("QUIRE_TRUST_REMOTE_CODE", "perhaps")
    with pytest.raises(ConfigError, match="QUIRE_TRUST_REMOTE_CODE is 'perhaps': use true or false"):
        build_stack({}, {})
    monkeypatch.delenv("QUIRE_TRUST_REMOTE_CODE")
    with pytest.raises(ConfigError, match=r"^trust-remote-code in the configuration file cannot be used: "):
        build_stack({}, {"trust-remote-code": True})


def test_every_option_of_vllms_says_what_becomes_of_its_other_values() -> None:
    for option in OPTIONS.values():
        assert bool(option.refusal) != bool(option.note), option.name


def test_the_tables_of_the_documentation_are_what_the_code_does(capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text()
    made = with_tables(
        text,
        lines="\n".join(f"| `{line}` | {result(line, capsys)} |" for line in LINES),
        options="\n".join(row(option) for option in OPTIONS.values()),
    )
    if "QUIRE_WRITE_DOCS" in os.environ:
        PAGE.write_text(made)
    assert PAGE.read_text() == made


def with_tables(text: str, **bodies: str) -> str:
    """The page with the rows between `<!-- NAME -->` and `<!-- end -->` replaced."""
    for name, body in bodies.items():
        head = re.search(rf"(?s)(<!-- {name} -->\n\| .*?\n\|---.*?\n).*?(<!-- end -->)", text)
        assert head is not None, name
        text = text[: head.start()] + head[1] + body + "\n" + head[2] + text[head.end() :]
    return text


def row(option: VllmOption) -> str:
    flag = f"`--{option.name}`" + (f", `{option.short}`" if option.short else "")
    if option.form is Form.SWITCH:
        forms = {True: f"`--{option.name}`", False: f"`--no-{option.name}`"}
        accepted = ", ".join(forms[bool(value)] for value in option.accepted)
    else:
        accepted = ", ".join(f"`{value}`" if " " not in str(value) else str(value) for value in option.accepted)
    other = f"refused: {option.refusal}" if option.refusal else f"starts, with a note: {option.note}"
    return f"| {flag} | {accepted} | {other} |"
