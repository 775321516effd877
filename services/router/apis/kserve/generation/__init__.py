"""Generation by the Open Inference Protocol, over HTTP and gRPC. It needs pydantic."""
