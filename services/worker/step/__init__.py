"""Runs steps: applies a plan, launches forward pass, sampling and pooling, and collects their results."""

from services.worker.step.create import (
    create_device_check,
    create_device_forward_pass,
    create_plain_forward_pass,
    create_step_clock,
)
from services.worker.step.device import Device
from services.worker.step.forward_pass import EncoderForwardPass
from services.worker.step.generation import DecoderGeneration, NoGeneration
from services.worker.step.graphs import GraphRecorder, Recorder
from services.worker.step.model_runner import LaunchedStep, ModelRunner
from services.worker.step.pooled_output import EmbeddingOutput, PooledOutput, ScoreOutput
from services.worker.step.pooler import Pooler

__all__ = [
    "DecoderGeneration",
    "Device",
    "EmbeddingOutput",
    "EncoderForwardPass",
    "GraphRecorder",
    "LaunchedStep",
    "ModelRunner",
    "NoGeneration",
    "PooledOutput",
    "Pooler",
    "Recorder",
    "ScoreOutput",
    "create_device_check",
    "create_device_forward_pass",
    "create_plain_forward_pass",
    "create_step_clock",
]
