"""One case for each type; tests/unit/worker/test_model_families.py has their variants."""

from tests.models.case import Case
from tests.models.tiny import GQA

MIXED = {"sliding_window": 12, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}

CASES = [
    Case("llama", GQA),
    Case("mistral", GQA | {"sliding_window": 20}),
    Case("ministral", GQA | MIXED | {"head_dim": 16}),
    Case("qwen2", GQA | {"use_sliding_window": True, "sliding_window": 10, "max_window_layers": 1}),
    Case("qwen3", GQA | {"head_dim": 32}),
    Case("smollm3", GQA | {"no_rope_layer_interval": 2}),
    Case("seed_oss", GQA | {"head_dim": 16, "attention_bias": True, "attention_out_bias": True}),
    Case("cwm", GQA | {"head_dim": 16, "num_hidden_layers": 5, "sliding_window": 12}),
    Case("phi3", GQA),
]
