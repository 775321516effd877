"""Checks whether Quire runs a model, and whether it fits."""

from __future__ import annotations

from quire.cli.doctor.finding import Finding, ok, problem
from quire.cli.doctor.gpu import UTILIZATION, Cuda, gpus_for
from quire.cli.memory_need import memory_need
from services.worker.config import WorkerConfig
from shared.config import ConfigError
from shared.host_memory import available_memory, in_words


def check_model(config: WorkerConfig, cuda: Cuda | str) -> Finding:
    """Reads the configuration of the model; downloads it if the model is on the hub, but no weights."""
    from services.worker.checkpoint import CONFIG_FILES, find_checkpoint
    from services.worker.errors import ModelError
    from services.worker.models import weight_bytes
    from services.worker.quantization import COMPUTED, resolve_quantization

    name = config.model or "the bundled model"
    gpus = [gpu for _, gpu in gpus_for(cuda, config.device) if not gpu.refusal]
    on_gpu = bool(gpus) or config.device.startswith("cuda")
    try:
        checkpoint = find_checkpoint(config, patterns=CONFIG_FILES)
        model = checkpoint.read_encoder_config() or checkpoint.read_config()
        if on_gpu:
            at_load = resolve_quantization(config.quantization, model.quantization)
            needed = weight_bytes(model, 2, at_load, COMPUTED["cuda"])
            room = int(gpus[0].num_bytes * UTILIZATION) if gpus else None
            where = f"{UTILIZATION:.0%} of the GPU"
        else:
            needed, available = memory_need(config, on_cpu=True).num_bytes, available_memory()
            room, where = (available.num_bytes, available.where) if available else (needed, "this host")
    except (ModelError, ConfigError) as error:
        return problem("model", str(error), "quire models lists what runs; docs/models.md says how")
    words = f"{name} ({model.architecture}) takes {in_words(needed)}"
    if room is None:
        return ok("model", f"{words}; without that GPU, it is not known whether it fits")
    if needed > room:
        remedy = "quire estimate MODEL shows which GPUs hold it, and --quantization int8 or int4 makes it smaller"
        return problem("model", f"{words}, but {where} has {in_words(room)}", remedy)
    return ok("model", f"{words} of {in_words(room)} on {where}, and the KV cache gets a part of the rest")
