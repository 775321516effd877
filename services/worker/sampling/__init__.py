"""Samples the next tokens: sampling parameters, log probabilities, and masks of grammars and other constraints."""

from services.worker.sampling.create import create_device_sampler
from services.worker.sampling.grammars import Grammars
from services.worker.sampling.host_sampler import HostSampler
from services.worker.sampling.logprobs import LogprobTensors
from services.worker.sampling.prompt_logprobs import PromptLogprobTensors, compute_prompt_logprobs
from services.worker.sampling.sampler import Sample, Sampler
from services.worker.sampling.slot_constraints import SlotConstraints
from services.worker.sampling.token_mask import TokenMask

__all__ = [
    "Grammars",
    "HostSampler",
    "LogprobTensors",
    "PromptLogprobTensors",
    "Sample",
    "Sampler",
    "SlotConstraints",
    "TokenMask",
    "compute_prompt_logprobs",
    "create_device_sampler",
]
