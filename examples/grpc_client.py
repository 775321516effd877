"""Calls the typed API over gRPC with Quire's Python client, then with generated stubs, as other languages do."""

from __future__ import annotations

import argparse

import grpc

from quire import Client
from quire.inference.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2

QUESTION = "What is 7 plus 5?"


def with_client(address: str) -> None:
    with Client(address) as client:
        print("models:", [model.name for model in client.models()])
        result = client.chat([{"role": "user", "content": QUESTION}], temperature=0, max_tokens=20)
        print("client:", result.text)
        if result.timings is not None:
            print(f"waited {1000 * (result.timings.queue or 0):.1f} ms in the queue")


def with_stubs(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        service = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.ChatRequest(
            messages=[inference_pb2.ChatMessage(role="user", content=QUESTION)],
            options=inference_pb2.GenerationOptions(
                sampling=sampling_pb2.SamplingParams(temperature=0),
                stop=sampling_pb2.StopConditions(max_tokens=20),
            ),
        )
        print("stubs: ", end="")
        for event in service.Chat(request):
            if event.HasField("delta"):
                print(event.delta.text, end="", flush=True)
            else:  # The final event. A stream without it is incomplete.
                print(f"\n{event.final.usage.completion_tokens} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where quire serve listens")
    arguments = parser.parse_args()
    address = arguments.url.removeprefix("http://")
    with_client(address)
    with_stubs(address)


if __name__ == "__main__":
    main()
