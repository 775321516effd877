"""The table and the file, as scripts that read vLLM's expect them."""

from __future__ import annotations

import json
import math

from quire.bench.measurement import Measurement
from quire.bench.metrics import LATENCIES, summarize
from quire.bench.report import Traffic, file_name, result, table

MEASUREMENTS = [
    Measurement(100.0, 10, 4, [100.5, 100.75, 101.0, 102.0], 102.0),
    Measurement(100.25, 20, 1, [101.25], 101.25),
]
AT_A_RATE = Traffic("openai", "org/tiny", 2, 5.0, 1.0, 8)
AT_ONCE = Traffic("openai-chat", "tiny", 2, math.inf, math.inf, None)

TABLE = """\
============ Serving Benchmark Result ============
Successful requests:                     2
Failed requests:                         0
Maximum request concurrency:             8
Request rate configured (RPS):           5.00
Benchmark duration (s):                  4.00
Total input tokens:                      30
Total generated tokens:                  5
Request throughput (req/s):              0.50
Request goodput (req/s):                 0.25
Output token throughput (tok/s):         1.25
Peak output token throughput (tok/s):    2.00
Peak concurrent requests:                2.00
Total token throughput (tok/s):          8.75
---------------Time to First Token----------------
Mean TTFT (ms):                          750.00
Median TTFT (ms):                        750.00
P50 TTFT (ms):                           750.00
P99.9 TTFT (ms):                         999.50
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          500.00
Median TPOT (ms):                        500.00
P50 TPOT (ms):                           500.00
P99.9 TPOT (ms):                         500.00
---------------Inter-token Latency----------------
Mean ITL (ms):                           500.00
Median ITL (ms):                         250.00
P50 ITL (ms):                            250.00
P99.9 ITL (ms):                          998.50
----------------End-to-end Latency----------------
Mean E2EL (ms):                          1500.00
Median E2EL (ms):                        1500.00
P50 E2EL (ms):                           1500.00
P99.9 E2EL (ms):                         1999.00
=================================================="""


def test_the_table() -> None:
    metrics = summarize(MEASUREMENTS, 4.0, [50.0, 99.9], {"ttft": 600.0})

    assert table(metrics, AT_A_RATE, LATENCIES) == TABLE


def test_what_was_not_asked_for_is_not_told() -> None:
    told = table(summarize(MEASUREMENTS, 4.0, [99.0], {}), AT_ONCE, ["itl"])

    assert not any(word in told for word in ("Maximum", "configured", "goodput", "TTFT", "TPOT", "E2EL"))
    assert "P99 ITL (ms):" in told


def test_the_file_has_vllm_s_keys() -> None:
    metrics = summarize(MEASUREMENTS, 4.0, [50.0, 99.9], {"ttft": 600.0})
    values = result(metrics, AT_A_RATE, "20260102-030405")

    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values.items() >= {
        "date": "20260102-030405", "endpoint_type": "openai", "backend": "openai", "label": None,
        "model_id": "org/tiny", "tokenizer_id": None, "num_prompts": 2, "request_rate": 5.0, "burstiness": 1.0,
        "max_concurrency": 8, "duration": 4.0, "completed": 2, "failed": 0, "total_input_tokens": 30,
        "total_output_tokens": 5, "request_throughput": 0.5, "request_goodput": 0.25, "output_throughput": 1.25,
        "total_token_throughput": 8.75, "max_output_tokens_per_s": 2.0, "max_concurrent_requests": 2,
        "mean_ttft_ms": 750.0, "median_ttft_ms": 750.0, "std_ttft_ms": 250.0, "p50_ttft_ms": 750.0,
        "median_itl_ms": 250.0, "mean_tpot_ms": 500.0, "std_e2el_ms": 500.0,
    }.items()  # fmt: skip
    assert {f"p99.9_{name}_ms" for name in LATENCIES} <= values.keys()


def test_infinity_is_a_word_in_the_file() -> None:
    values = result(summarize(MEASUREMENTS, 4.0, [99.0], {}), AT_ONCE, "20260102-030405")

    json.dumps(values, allow_nan=False)
    assert values.items() >= {"request_rate": "inf", "burstiness": "inf", "max_concurrency": None}.items()
    assert values["request_goodput"] is None


def test_the_file_s_name() -> None:
    assert file_name(AT_A_RATE, "20260102-030405") == "openai-5.0qps-concurrency8-tiny-20260102-030405.json"
    assert file_name(AT_ONCE, "20260102-030405") == "openai-chat-infqps-tiny-20260102-030405.json"
