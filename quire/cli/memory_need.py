"""How much host memory a worker takes at least, from its options and the model's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from services.worker.config import WorkerConfig
from services.worker.quantization import COMPUTED, resolve_quantization
from shared.config import ConfigError
from shared.host_memory import GIB, in_words

_CPU_ELEMENT_BYTES = 4  # CPUs compute in float32


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Host memory of one worker: what each thing that is known takes, in bytes. `has_default_cache`: it also has a KV
    cache of the default size, which takes a part of what is left."""

    parts: dict[str, int]
    has_default_cache: bool

    @property
    def num_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def words(self) -> str:
        """The parts for an error message."""
        return ", ".join(f"{name} {in_words(num_bytes)}" for name, num_bytes in self.parts.items() if num_bytes)


def memory_need(config: WorkerConfig, on_cpu: bool) -> MemoryNeed:
    """Returns the host memory that a worker takes. `on_cpu`: whether weights and KV cache lie there, too. Reads the
    model's configuration, and downloads it if it is on the hub, but no weights. Raises ConfigError if the model cannot
    be found or run."""
    parts = {"--swap-space": int((config.swap_space or 0) * GIB)}
    if not on_cpu:
        return MemoryNeed(parts, has_default_cache=False)
    # Imported here, because a stack with one model does without: the import takes a third of a second.
    from services.worker.checkpoint import CONFIG_FILES, find_checkpoint
    from services.worker.errors import ModelError
    from services.worker.models import kv_bytes_per_token, weight_bytes

    try:
        checkpoint = find_checkpoint(config, patterns=CONFIG_FILES)
        encoder = checkpoint.read_encoder_config()
        if encoder is not None:
            parts["weights"] = weight_bytes(encoder, _CPU_ELEMENT_BYTES, computed=COMPUTED["cpu"])
            return MemoryNeed(parts, has_default_cache=False)
        model = checkpoint.read_config()
        at_load = resolve_quantization(config.quantization, model.quantization)
        parts["weights"] = weight_bytes(model, _CPU_ELEMENT_BYTES, at_load, COMPUTED["cpu"])
    except ModelError as error:
        raise ConfigError(f"{config.model or 'the bundled model'}: {error}") from error
    if config.num_gpu_blocks_override is not None:
        block_bytes = kv_bytes_per_token(model, _CPU_ELEMENT_BYTES) * config.block_size
        parts["--num-gpu-blocks-override"] = config.num_gpu_blocks_override * block_bytes
    elif config.kv_cache_memory_bytes is not None:
        parts["--kv-cache-memory-bytes"] = config.kv_cache_memory_bytes
    else:
        return MemoryNeed(parts, has_default_cache=True)
    return MemoryNeed(parts, has_default_cache=False)
