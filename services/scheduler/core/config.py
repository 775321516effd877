"""The core's configuration: the sizes of the worker group's KV cache, and the limits on steps and on the queue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class PreemptionMode(Enum):
    """How a preempted sequence continues: its KV blocks are copied to the host and back, or computed again."""

    AUTO = "auto"  # whichever takes less time
    SWAP = "swap"  # swap while there is room on the host, otherwise recompute
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class CoreConfig:
    num_blocks: int  # KV blocks on the device
    block_size: int  # KV slots per block
    max_num_seqs: int  # sequences in one step
    max_num_batched_tokens: int  # tokens in one step
    max_model_len: int  # tokens of prompt and output together
    target_tbt_s: float | None = None  # target time between tokens; limits the chunks of prompts; None: no target
    num_host_blocks: int = 0  # slots of one block each in host memory
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    seconds_per_swapped_block: float = math.inf  # time to copy one block between device and host
    enable_prefix_caching: bool = True
    chunked_prefill: bool = True  # False: each prompt is computed in one step
    fair_queueing: bool = False  # the tenant that has received the fewest tokens is served first
    max_num_queued_reqs: int = 1024  # maximum number of waiting sequences
    # Maximum total size of the new sequences in one plan, in bytes. It keeps a plan under a megabyte. A sequence above
    # the limit is the only new one in its plan.
    max_new_sequence_bytes: int = 800_000

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_num_seqs "
                f"({self.max_num_seqs}): a step could not decode every sequence"
            )
        if not self.chunked_prefill and self.target_tbt_s is not None:
            raise ValueError("target_tbt_s is set, but chunked_prefill is off: prompts cannot be cut to meet it")
        if not self.chunked_prefill and self.max_model_len > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_model_len "
                f"({self.max_model_len}), but chunked_prefill is off: the longest prompt could never be computed"
            )
        if self.max_model_len > self.num_blocks * self.block_size:
            raise ValueError(
                f"max_model_len ({self.max_model_len}) exceeds the KV cache ({self.num_blocks} blocks of "
                f"{self.block_size} slots): a sequence of that length could never finish"
            )
