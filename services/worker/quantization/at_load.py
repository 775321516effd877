"""`--quantization`: what it asks for, beside what the checkpoint is."""

from __future__ import annotations

from dataclasses import dataclass

from services.worker.errors import ModelError
from services.worker.quantization.formats import Fp8Format, Int8Format, MatrixFormat
from services.worker.quantization.scheme import CheckpointQuantization


@dataclass(frozen=True, slots=True)
class AtLoad:
    """Weights that a checkpoint holds in floats, quantized as they are loaded."""

    name: str  # as --quantization calls it
    form: MatrixFormat
    # The output layer too, and with it embeddings that are tied to it: on a CPU it is a good part of a small model.
    output_layer: bool

    def applies(self, layer: str, tied: bool) -> bool:
        if layer in ("lm_head", "model.embed_tokens"):
            return self.output_layer and (layer == "lm_head" or tied)
        return True


AT_LOAD = {
    scheme.name: scheme
    for scheme in (
        AtLoad("fp8", Fp8Format(), output_layer=False),
        AtLoad("int8", Int8Format(quantize_activations=True), output_layer=True),
        AtLoad("int8-weight-only", Int8Format(quantize_activations=False), output_layer=True),
    )
}
CHECKPOINT_METHODS = ("fp8", "awq", "gptq", "compressed-tensors", "gguf")
# The kernels that vLLM users choose; the format of the weights is the same.
ALIASES = {"awq_marlin": "awq", "gptq_marlin": "gptq"}
CHOICES = tuple(dict.fromkeys((*AT_LOAD, *CHECKPOINT_METHODS)))


def resolve_quantization(option: str | None, checkpoint: CheckpointQuantization | None) -> AtLoad | None:
    """What is to be quantized at load; None where the weights stay as they are stored. Raises ModelError where the
    option is not what the checkpoint is."""
    if option is None or (checkpoint is not None and option == checkpoint.method):
        return None
    if checkpoint is not None:
        raise ModelError(f"--quantization is {option}, but the checkpoint is {checkpoint.method}; leave the option out")
    if option not in AT_LOAD:
        raise ModelError(
            f"--quantization is {option}, but the checkpoint is not quantized; "
            f"weights are quantized at load with {', '.join(AT_LOAD)}"
        )
    return AT_LOAD[option]
