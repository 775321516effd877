"""Opens the weights of a model, whatever the format in which they are stored."""

from __future__ import annotations

import logging
from pathlib import Path

from services.worker.errors import ModelError
from services.worker.models import EncoderConfig, ModelConfig
from services.worker.ops import Ops
from services.worker.progress import Progress
from services.worker.quantization import COMPUTED, AtLoad
from services.worker.weights.dummy_source import DummySource
from services.worker.weights.source import NativeSource, QuantizingSource, WeightSource

logger = logging.getLogger(__name__)


def open_weights(
    path: Path,
    config: ModelConfig | EncoderConfig,
    ops: Ops,
    load_format: str,
    at_load: AtLoad | None,
    progress: Progress,
) -> WeightSource:
    """Opens a model's weights. `path`: a checkpoint's directory, or a GGUF file. Raises ModelError if its format
    is not `load_format`, or if its tensors do not match `config`. `at_load`: the quantization of float weights; None:
    they stay floats."""
    source: WeightSource
    is_gguf = path.suffix == ".gguf"
    if load_format in ("gguf", "safetensors") and is_gguf != (load_format == "gguf"):
        raise ModelError(f"--load-format is {load_format}, but {path} is {'a' if is_gguf else 'not a'} GGUF file")
    if load_format == "dummy":
        source = DummySource(config.parameters, ops.device, ops.dtype, config.quantization)
    elif is_gguf:
        from services.worker.weights.gguf_source import GGUFSource

        assert isinstance(config, ModelConfig), "only decoders are read from GGUF files"
        source = GGUFSource(path, config, progress, ops.device)
    else:
        from services.worker.weights.safetensors_source import SafetensorsSource

        source = SafetensorsSource(path, config, progress, ops.device)
    if at_load is not None:
        is_tied = isinstance(config, ModelConfig) and config.network.tie_word_embeddings
        source = QuantizingSource(source, at_load, ops, is_tied, _experts_in_floats(config, ops, at_load))
    return NativeSource(source, ops)


def _experts_in_floats(config: ModelConfig | EncoderConfig, ops: Ops, at_load: AtLoad) -> frozenset[str]:
    """Returns the matrices of experts if the operations would turn them back into floats: to quantize them would cost
    precision and save no memory."""
    experts, computed = config.declaration.of_experts, COMPUTED[ops.device.type]
    if not experts or at_load.kind not in computed.matrices - computed.experts:
        return frozenset()
    logger.warning(
        "the %s operations compute experts with floats: --quantization %s leaves the experts as they are",
        ops.name,
        at_load.name,
    )
    return experts
