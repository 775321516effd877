"""Runs steps: applies a plan, launches forward pass, sampling and pooling, and collects what they computed."""

from services.worker.step.create import create_device_check
from services.worker.step.graphs import GraphRecorder, Recorder
from services.worker.step.model_runner import LaunchedStep, ModelRunner

__all__ = ["GraphRecorder", "LaunchedStep", "ModelRunner", "Recorder", "create_device_check"]
