"""Rotary position embeddings (Su et al., 2021) and their context extensions: linear, llama3, YaRN,
LongRoPE and proportional."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.worker.errors import ModelError
from services.worker.fields import MAX_POSITIONS, Fields, is_finite

if TYPE_CHECKING:
    from torch import Tensor

MAX_THETA = 1e18
MAX_FACTOR = 1e6


@dataclass(frozen=True, slots=True)
class RopeConfig:
    rotary_dim: int  # elements of each head that are rotated
    theta: float
    kind: str = "default"  # default, linear, llama3, yarn, longrope or proportional
    factor: float = 1.0
    original_max_positions: int = 0  # llama3, yarn and longrope: length of the context without scaling
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    attention_factor: float = 1.0  # yarn and longrope: multiplies cosines and sines
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the ends of the ramp between kept and divided frequencies to whole dimensions
    num_pairs: int = 0  # proportional: pairs of elements that turn, by frequencies of the whole head; others stay
    frequency_factors: tuple[float, ...] = ()  # [rotary_dim / 2], divisors of the frequencies, only from GGUF files
    # longrope: [rotary_dim / 2] each, divisors of the frequencies for up to `original_max_positions`, and for more.
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def max_model_len(self, max_position_embeddings: int) -> int:
        """Returns the maximum length of a sequence in tokens, with RoPE scaling.

        Linear scaling multiplies max_position_embeddings by `factor`. YaRN multiplies original_max_positions, but gives
        at least max_position_embeddings. Other kinds give max_position_embeddings.
        """
        if self.kind == "linear":
            return int(max_position_embeddings * self.factor)
        if self.kind == "yarn":
            return max(max_position_embeddings, int(self.original_max_positions * self.factor))
        return max_position_embeddings

    def cos_sin(self, num_positions: int) -> Tensor:
        """Returns float32 [num_positions, rotary_dim]: cosines in the first half of a row, sines in the second.

        LongRoPE has two sets of frequencies. transformers chooses one by the longest sequence of a batch, so that a
        sequence's tokens would depend on the others. Here `num_positions`, the longest sequence that is served,
        chooses, as in vLLM.
        """
        import torch

        # Computed in float32, with transformers' order of operations, so that the angles equal transformers' exactly.
        inverse = self._inverse_frequencies(num_positions)
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse
        return torch.cat((angles.cos(), angles.sin()), dim=-1) * self.attention_factor

    def _inverse_frequencies(self, num_positions: int) -> Tensor:
        """Returns the scaled frequencies in radians per position, float32 [rotary_dim / 2]."""
        import torch

        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32) / self.rotary_dim
        if self.kind == "longrope":
            factors = self.long_factors if num_positions > self.original_max_positions else self.short_factors
            return 1.0 / (torch.tensor(factors, dtype=torch.float32) * self.theta**exponents)
        inverse = 1.0 / (self.theta**exponents)
        if self.frequency_factors:
            return inverse / torch.tensor(self.frequency_factors, dtype=torch.float32)
        if self.kind == "proportional":
            inverse[self.num_pairs :] = 0.0
        if self.kind in ("linear", "proportional"):
            return inverse / self.factor
        if self.kind == "llama3":
            return self._llama3(inverse)
        if self.kind == "yarn":
            return self._yarn(exponents)
        return inverse

    def _llama3(self, inverse: Tensor) -> Tensor:
        """Scales `inverse`, the frequencies, as Llama 3.1's model code does: divides frequencies with long wavelengths
        by `factor`, keeps those with short wavelengths, and interpolates for wavelengths between.
        """
        import torch

        low = self.original_max_positions / self.low_freq_factor
        high = self.original_max_positions / self.high_freq_factor
        wavelength = 2 * math.pi / inverse
        stretched = torch.where(wavelength > low, inverse / self.factor, inverse)
        if low == high:  # as in Llama 4 Scout: no wavelength is between
            return stretched
        smooth = (self.original_max_positions / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        blended = (1 - smooth) * inverse / self.factor + smooth * inverse
        return torch.where((wavelength >= high) & (wavelength <= low), blended, stretched)

    def _yarn(self, exponents: Tensor) -> Tensor:
        """Returns frequencies by NTK-by-parts (Peng et al., 2023, section 3.2). The first dimensions keep their
        frequency. The frequency of the last dimensions is divided by `factor`. Between them, the weights of the kept
        and the divided frequency change along a linear ramp.
        """
        import torch

        frequencies = self.theta**exponents
        extrapolated, interpolated = 1.0 / frequencies, 1.0 / (self.factor * frequencies)

        def dimension(rotations: float) -> float:
            turns = self.original_max_positions / (rotations * 2 * math.pi)
            return self.rotary_dim * math.log(turns) / (2 * math.log(self.theta))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.rotary_dim - 1)
        if low == high:
            high += 0.001
        ramp = ((torch.arange(self.rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
        keep = 1 - ramp
        return interpolated * (1 - keep) + extrapolated * keep


def read_rope(
    config: Fields,
    head_dim: int,
    *,
    theta: float = 10_000.0,
    parameters: Mapping[str, Any] | None = None,
    partial: float = 1.0,
    positions: int | None = None,
) -> RopeConfig:
    """Reads RoPE's parameters from config.json, in the form of transformers 5 (`rope_parameters`) or 4 (`rope_theta`,
    `rope_scaling`). The arguments after `head_dim` are the architecture's defaults: `theta`, all `parameters`, the part
    of each head that is rotated, and max_position_embeddings, which config.json must have if this is None.

    Raises ModelError for a kind of RoPE that is not supported, and for values out of range.
    """
    given = config.nested("rope_scaling") or config.nested("rope_parameters")
    fields = given or Fields(parameters or {}, config.where)
    kind = fields.text("rope_type", fields.text("type", "default"))
    if "long_factor" in fields.values:
        kind = "longrope"  # early Phi-3 checkpoints call it su or yarn
    if kind == "mrope":
        # Qwen2-VL rotates by three positions, which are equal for text (Wang et al., 2024, section 2.1).
        kind = "default"
    default_theta = config.number("rope_theta", theta, above=1, high=MAX_THETA)
    theta = fields.number("rope_theta", default_theta, above=1, high=MAX_THETA)
    if kind not in ("default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn"):
        raise ModelError(
            f"{config.where}: RoPE scaling of type {kind} is not supported; supported are default, dynamic, linear, "
            "llama3, longrope, proportional and yarn"
        )
    partial = config.number("partial_rotary_factor", partial, above=0, high=1)
    partial = fields.number("partial_rotary_factor", partial, above=0, high=1)
    rotary_dim = head_dim if kind == "proportional" else int(head_dim * partial)
    if rotary_dim % 2 or not rotary_dim:
        raise ModelError(f"{config.where}: RoPE rotates {rotary_dim} dimensions of each head; expected an even number")
    # Dynamic scaling applies only to sequences beyond max_position_embeddings, which Quire does not accept.
    if kind in ("default", "dynamic"):
        return RopeConfig(rotary_dim, theta)
    if kind == "proportional":
        factor = fields.number("factor", 1.0, above=0, high=MAX_FACTOR)
        return RopeConfig(rotary_dim, theta, kind, factor=factor, num_pairs=int(partial * head_dim // 2))
    positions = config.count("max_position_embeddings", MAX_POSITIONS, positions)
    name = "original_max_position_embeddings"
    if kind == "longrope":
        return _read_longrope(config, fields, rotary_dim, theta, positions)
    original = config.count(name, MAX_POSITIONS, fields.count(name, MAX_POSITIONS, positions))
    factor = fields.number("factor", positions / original, above=0, high=MAX_FACTOR)
    low_freq_factor = fields.number("low_freq_factor", 1.0, above=0, high=MAX_FACTOR)
    high_freq_factor = fields.number("high_freq_factor", 4.0, above=0, high=MAX_FACTOR)
    if kind == "llama3" and low_freq_factor > high_freq_factor:
        raise fields.wrong("high_freq_factor", f"a number of at least low_freq_factor, {low_freq_factor:g}")
    return RopeConfig(
        rotary_dim,
        theta,
        kind,
        factor=factor,
        original_max_positions=original,
        low_freq_factor=low_freq_factor,
        high_freq_factor=high_freq_factor,
        attention_factor=_attention_factor(fields, factor) if kind == "yarn" else 1.0,
        beta_fast=fields.number("beta_fast", 32.0, above=0, high=MAX_FACTOR),
        beta_slow=fields.number("beta_slow", 1.0, above=0, high=MAX_FACTOR),
        truncate=fields.flag("truncate", True),
    )


def _read_longrope(config: Fields, fields: Fields, rotary_dim: int, theta: float, positions: int) -> RopeConfig:
    """Reads LongRoPE (Ding et al., 2024). `fields`: of RoPE; `positions`: max_position_embeddings."""
    name = "original_max_position_embeddings"
    original = (config if config.values.get(name) is not None else fields).count(name, MAX_POSITIONS)
    factor = fields.number("factor", positions / original, above=0, high=MAX_FACTOR)
    # Beside a longer context, attention gets sharper (Ding et al., 2024, section 3.3).
    sharpness = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return RopeConfig(
        rotary_dim,
        theta,
        "longrope",
        factor=factor,
        original_max_positions=original,
        attention_factor=fields.number("attention_factor", sharpness, above=0, high=MAX_FACTOR),
        short_factors=_read_divisors(fields, "short_factor", rotary_dim // 2),
        long_factors=_read_divisors(fields, "long_factor", rotary_dim // 2),
    )


def _read_divisors(fields: Fields, name: str, length: int) -> tuple[float, ...]:
    divisors = fields.items(name, length)
    if divisors is None or not all(is_finite(value) and 0 < value <= MAX_FACTOR for value in divisors):
        raise fields.wrong(name, f"{length:,} numbers over 0, one for each pair of rotated dimensions")
    return tuple(map(float, divisors))


def read_rope_of_whole_heads(config: Fields, head_dim: int, *, theta: float = 10_000.0) -> RopeConfig:
    """Returns the same as `read_rope`. Raises ModelError if only a part of each head is rotated, which this
    architecture does not do."""
    rope = read_rope(config, head_dim, theta=theta)
    if rope.rotary_dim != head_dim:
        raise ModelError(f"{config.where} sets partial_rotary_factor, which this architecture does not support")
    return rope


def read_score_factor(config: Fields, rope: RopeConfig) -> float:
    """Returns the factor of attention scores that DeepSeek's key `mscale_all_dim` adds to a scaled RoPE; 1 if the key
    is missing or 0. It is the square of a factor for queries and keys, on all of their elements."""
    given = config.nested("rope_scaling") or config.nested("rope_parameters")
    if given is None or given.text("rope_type", given.text("type", "default")) == "default":
        return 1.0
    if not given.values.get("mscale_all_dim"):
        return 1.0
    factor = given.number("factor", rope.factor, above=0, high=MAX_FACTOR)
    return _yarn_scale(factor, given.number("mscale_all_dim", 0.0, above=0, high=MAX_FACTOR)) ** 2


def _yarn_scale(factor: float, multiplier: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0


def _attention_factor(parameters: Fields, factor: float) -> float:
    """Returns YaRN's factor for cosines and sines: `attention_factor` if it is given; else the factor by DeepSeek's
    keys `mscale` and `mscale_all_dim` if they are given; else the factor by YaRN's equation 22.
    """
    given = parameters.values
    if given.get("attention_factor") is not None:
        return parameters.number("attention_factor", 1.0, above=0, high=MAX_FACTOR)
    if given.get("mscale") and given.get("mscale_all_dim"):
        mscale, all_dim = (
            parameters.number(name, 1.0, above=0, high=MAX_FACTOR) for name in ("mscale", "mscale_all_dim")
        )
        return _yarn_scale(factor, mscale) / _yarn_scale(factor, all_dim)
    return _yarn_scale(factor, 1.0)
