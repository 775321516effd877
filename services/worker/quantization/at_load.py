"""Decides from `--quantization` and the checkpoint's own quantization how weights are quantized at load."""

from __future__ import annotations

from dataclasses import dataclass

from services.worker.errors import ModelError
from services.worker.quantization.formats import Fp8Format, Int8Format, MatrixFormat
from services.worker.quantization.scheme import CheckpointQuantization


@dataclass(frozen=True, slots=True)
class AtLoad:
    """Quantization at load, of weights that the checkpoint holds in floats."""

    name: str  # value of --quantization
    form: MatrixFormat
    # Whether the output layer and embeddings tied to it are quantized, too. They are a large part of the
    # small models that run on CPUs.
    output_layer: bool

    def applies(self, layer: str, tied: bool) -> bool:
        if layer in ("lm_head", "model.embed_tokens"):
            return self.output_layer and (layer == "lm_head" or tied)
        # `Build.absorbed` takes this matrix apart into floats.
        return not layer.endswith(".kv_b_proj")


AT_LOAD = {
    scheme.name: scheme
    for scheme in (
        AtLoad("fp8", Fp8Format(), output_layer=False),
        AtLoad("int8", Int8Format(quantize_activations=True), output_layer=True),
        AtLoad("int8-weight-only", Int8Format(quantize_activations=False), output_layer=True),
    )
}
CHECKPOINT_METHODS = ("fp8", "awq", "gptq", "compressed-tensors", "mxfp4", "gguf")
# Names of vLLM's kernels that the option accepts, and the formats whose weights those kernels use.
ALIASES = {"awq_marlin": "awq", "gptq_marlin": "gptq"}
CHOICES = tuple(dict.fromkeys((*AT_LOAD, *CHECKPOINT_METHODS)))


def resolve_quantization(option: str | None, checkpoint: CheckpointQuantization | None) -> AtLoad | None:
    """Returns how to quantize at load; None if weights stay as they are stored. Raises ModelError if the option
    contradicts the checkpoint."""
    if option is None or (checkpoint is not None and option == checkpoint.method):
        return None
    if checkpoint is not None:
        raise ModelError(f"--quantization is {option}, but the checkpoint is {checkpoint.method}; leave the option out")
    if option not in AT_LOAD:
        raise ModelError(
            f"--quantization is {option}, but the checkpoint is not quantized; "
            f"--quantization can quantize it at load with {', '.join(AT_LOAD)}"
        )
    return AT_LOAD[option]
