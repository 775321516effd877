"""The structures that C functions take: `kernels.h` and `layers.c` declare the same fields in the same order."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p


def _fields(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


_PLACES = ("positions", "query_starts", "block_tables")


class LinearStruct(Structure):
    _fields_ = [
        *_fields(c_void_p, "order", "zeros", "weight", "scales", "bias"),
        *_fields(c_int64, "in_features", "out_features", "depth", "group_size"),
        *_fields(c_int32, "bits", "flag"),
    ]


class LayerStruct(Structure):
    _fields_ = [
        *_fields(LinearStruct, "qkv", "output", "gate_up", "down"),
        *_fields(c_void_p, "q_norm", "k_norm", "post_attention_norm", "next_norm", "cos_sin", "slopes", "sinks"),
        *_fields(c_int64, "rotary_dim", "window", "chunk"),
        *_fields(c_float, "scale", "soft_cap"),
        *_fields(c_int32, "interleaved", "activation"),
    ]


class StepStruct(Structure):
    _fields_ = [
        *_fields(c_void_p, "layers", "key_pages", "value_pages", "key_blocks", "value_blocks", *_PLACES),
        *_fields(c_void_p, "sampled", "x", "residual", "scratch", "y"),
        *_fields(c_int64, "num_layers", "tokens", "num_sampled", "sequences", "max_blocks", "hidden", "intermediate"),
        *_fields(c_int64, "heads", "kv_heads", "head_dim", "block_size"),
        *_fields(c_float, "eps"),
        *_fields(c_int32, "threads"),
    ]


class HeadsStruct(Structure):
    _fields_ = [
        *_fields(c_void_p, "q", "k", "v", "cos_sin", "key_pages", "value_pages", *_PLACES),
        *_fields(c_int64, "q_row", "q_head", "k_row", "k_head", "v_row", "v_head", "key_block", "value_block"),
        *_fields(c_int64, "sequences", "heads", "kv_heads", "key_dim", "value_dim", "rotary_dim", "block_size"),
        *_fields(c_int64, "max_blocks"),
        *_fields(c_int32, "interleaved", "threads"),
    ]


class AttentionStruct(Structure):
    _fields_ = [
        *_fields(c_void_p, "q", "key_pages", "value_pages", "out", *_PLACES, "sinks", "slopes"),
        *_fields(c_void_p, "distance_bias"),
        *_fields(c_int64, "q_row", "q_head", "key_block", "value_block", "sequences", "heads", "kv_heads", "key_dim"),
        *_fields(c_int64, "value_dim", "block_size", "max_blocks", "window", "chunk", "lookahead", "farthest"),
        *_fields(c_float, "scale", "soft_cap"),
        *_fields(c_int32, "threads"),
    ]


STRUCTURES: tuple[type[Structure], ...] = (LinearStruct, LayerStruct, StepStruct, HeadsStruct, AttentionStruct)
