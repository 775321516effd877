"""Which workers a scheduler takes beside its first one. Workers of earlier releases send no prompts of embeddings."""

from __future__ import annotations

import pytest

from quire.inference.v1 import model_pb2, pooling_pb2
from services.scheduler.worker_groups.fleet_model import FleetModel, OtherModelError


def model(**prompts: str) -> model_pb2.ModelInfo:
    texts = [pooling_pb2.EmbeddingPrompt(name=name, text=text) for name, text in prompts.items()]
    return model_pb2.ModelInfo(
        name="m",
        embedding=pooling_pb2.EmbeddingInfo(size=8),
        embedding_prompts=pooling_pb2.EmbeddingPrompts(prompts=texts),
    )


def of_an_earlier_release() -> model_pb2.ModelInfo:
    info = model()
    info.ClearField("embedding_prompts")
    return info


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (model(query="q: "), model(query="q: ")),
        (model(query="q: "), of_an_earlier_release()),
        (of_an_earlier_release(), model(query="q: ")),
        (of_an_earlier_release(), of_an_earlier_release()),
    ],
)
def test_workers_of_two_releases_serve_side_by_side(first: model_pb2.ModelInfo, later: model_pb2.ModelInfo) -> None:
    fleet = FleetModel()
    fleet.adopt(first)
    fleet.adopt(later)
    assert fleet.info is first


@pytest.mark.parametrize("other", [model(), model(query="Q: "), model(document="q: ")])
def test_other_prompts_are_another_model(other: model_pb2.ModelInfo) -> None:
    fleet = FleetModel()
    fleet.adopt(model(query="q: "))
    with pytest.raises(OtherModelError, match="its embedding_prompts differ"):
        fleet.adopt(other)
