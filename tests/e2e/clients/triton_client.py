"""A program with Triton's client for the Open Inference Protocol, over HTTP and gRPC."""

from __future__ import annotations

import json
import sys

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException


def inputs(module, *, binary: bool = True):
    options = {} if binary else {"binary_data": False}
    text = module.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"One, two,"], dtype=object), **options)
    budget = module.InferInput("max_tokens", [1], "INT32")
    budget.set_data_from_numpy(np.array([8], dtype=np.int32), **options)
    temperature = module.InferInput("temperature", [1], "FP32")
    temperature.set_data_from_numpy(np.array([0], dtype=np.float32), **options)
    return [text, budget, temperature]


def text_of(result) -> str:
    (text,) = result.as_numpy("text_output")
    return text.decode()


def main(address: str, name: str, part: str) -> object:
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[part]
    client = module.InferenceServerClient(address)
    metadata = client.get_model_metadata(name)
    try:
        client.infer("none", inputs(module))
    except InferenceServerException as raised:
        error = raised.message()
    answers = {
        "alive": [client.is_server_live(), client.is_server_ready(), client.is_model_ready(name)],
        "platform": metadata["platform"] if part == "http" else metadata.platform,
        "text": text_of(client.infer(name, inputs(module))),
        "error": error,
    }
    if part == "http":
        outputs = [module.InferRequestedOutput("text_output", binary_data=False)]
        (text,) = client.infer(name, inputs(module, binary=False), outputs=outputs).as_numpy("text_output")
        answers["json"] = text
    return answers


if __name__ == "__main__":
    print(json.dumps({part: main(*sys.argv[1:3], part) for part in sys.argv[3:]}))
