"""/classify, and scores of cross-encoders, over a fake scheduler whose scores tell what was asked for."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from quire import AsyncClient, QuireError
from quire.inference.v1 import pooling_pb2
from quire.scheduler.v1 import scheduler_pb2
from tests.integration.router.conftest import MAX_MODEL_LEN, MODEL, RefusedError, StartRouter, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, FakeScheduler, unpack
from tests.integration.router.small_tokenizers import byte_level

LABELS = ["bad", "good", "unclear"]


def with_pairs(library: Tokenizer) -> Tokenizer:
    """Returns a tokenizer that joins pairs of texts as BERT's does."""
    library = Tokenizer.from_str(library.to_str())
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return library


TOKENIZER = with_pairs(byte_level())


def outputs_of(token_ids: list[int], params: pooling_pb2.ClassificationParams, num_labels: int) -> list[float]:
    """Depends on the number of tokens, the second text's first token and the activation."""
    start = params.second_text_at if params.HasField("second_text_at") else 0
    outputs = [math.sin(len(token_ids) * (label + 1) + start / 8) for label in range(num_labels)]
    if params.activates:
        outputs = [1 / (1 + math.exp(-value)) for value in outputs]
    return list(struct.unpack(f"<{num_labels}f", struct.pack(f"<{num_labels}f", *outputs)))


def classifier(*labels: str) -> FakeScheduler:
    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        assert submit.HasField("classification")
        assert not submit.HasField("pooling")
        outputs = outputs_of(unpack(submit.prompt_token_ids), submit.classification, len(labels))
        return Answer([], embedding=struct.pack(f"<{len(labels)}f", *outputs))

    scheduler = fake_scheduler(script, tokenizer=TOKENIZER)
    scheduler.model.classifier.labels.extend(labels)
    scheduler.model.is_encoder = True
    return scheduler


async def test_each_input_gets_its_label_and_the_scores_of_all(start_router: StartRouter) -> None:
    api = await start_router(classifier(*LABELS))
    texts = ["Hello", "Grüße aus Köln", "x"]
    ids = [TOKENIZER.encode(text).ids for text in texts]
    for body, activates in (
        ({"input": texts, "user": "me"}, True),
        ({"input": ids}, True),
        ({"input": texts, "use_activation": False}, False),
        ({"input": texts, "activation": False}, False),
    ):
        reply = (await api.post("CreateClassification", {"model": MODEL, **body})).json
        assert (reply["object"], reply["model"]) == ("list", MODEL)
        assert reply["id"].startswith("classify-")
        params = pooling_pb2.ClassificationParams(activates=activates)
        for index, (token_ids, entry) in enumerate(zip(ids, reply["data"], strict=True)):
            scores = outputs_of(token_ids, params, 3)
            assert entry == {
                "index": index,
                "label": LABELS[scores.index(max(scores))],
                "probs": pytest.approx(scores),
                "num_classes": 3,
            }
        assert reply["usage"] == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}


async def test_a_conversation_is_one_input(start_router: StartRouter) -> None:
    scheduler = classifier(*LABELS)
    api = await start_router(scheduler)
    reply = (await api.post("CreateClassification", {"messages": [{"role": "user", "content": "Is it wet?"}]})).json
    assert len(reply["data"]) == 1
    assert "<|im_start|>user\nIs it wet?" in TOKENIZER.decode(
        unpack(scheduler.submits[0].prompt_token_ids), skip_special_tokens=False
    )


async def test_a_cross_encoder_scores_pairs(start_router: StartRouter) -> None:
    scheduler = classifier("relevant")
    api = await start_router(scheduler)
    for first, second, pairs in (
        ("a", ["b", "cd"], [("a", "b"), ("a", "cd")]),
        (["a", "def"], ["b", "cd"], [("a", "b"), ("def", "cd")]),
    ):
        scheduler.submits.clear()
        reply = (await api.post("CreateScore", {"text_1": first, "text_2": second})).json
        encodings = [TOKENIZER.encode(*pair) for pair in pairs]
        assert sorted(unpack(submit.prompt_token_ids) for submit in scheduler.submits) == sorted(
            encoding.ids for encoding in encodings
        )
        expected = [
            outputs_of(encoding.ids, classification(encoding.type_ids.index(1)), 1)[0] for encoding in encodings
        ]
        assert [entry["score"] for entry in reply["data"]] == pytest.approx(expected)
        assert reply["usage"]["prompt_tokens"] == sum(len(encoding.ids) for encoding in encodings)
        async with AsyncClient(api.address) as client:
            assert list((await client.score(first, second)).scores) == pytest.approx(expected)


def classification(second_text_at: int) -> pooling_pb2.ClassificationParams:
    return pooling_pb2.ClassificationParams(second_text_at=second_text_at, activates=True)


async def test_a_cross_encoder_ranks_documents(start_router: StartRouter) -> None:
    api = await start_router(classifier("relevant"))
    documents = ["a", "bcd", "efghi"]
    reply = (await api.post("CreateRerank", {"query": "what", "documents": documents, "top_n": 2})).json
    encodings = [TOKENIZER.encode("what", document) for document in documents]
    scores = [outputs_of(one.ids, classification(one.type_ids.index(1)), 1)[0] for one in encodings]
    best = sorted(range(3), key=lambda index: -scores[index])[:2]
    assert [entry["index"] for entry in reply["results"]] == best
    assert [entry["relevance_score"] for entry in reply["results"]] == pytest.approx([scores[i] for i in best])
    assert reply["results"][0]["document"] == {"text": documents[best[0]]}


@pytest.mark.parametrize(
    ("method", "body", "param", "words"),
    [
        ("CreateClassification", {}, "input", "Missing required parameter"),
        ("CreateClassification", {"input": ["a", ""]}, "input[1]", ""),
        ("CreateClassification", {"input": "ab " * MAX_MODEL_LEN}, "input", "maximum context length"),
        ("CreateClassification", {"input": "x", "use_activation": 5}, "use_activation", ""),
        ("CreateEmbedding", {"input": "x"}, "model", "does not support embeddings. It is a classifier: use /classify."),
        ("CreateCohereEmbedding", {"texts": ["x"]}, "model", "It is a classifier"),
        ("CreateCompletion", {"prompt": "x"}, "model", "is a classifier: it serves classes and scores"),
        ("CreateScore", {"text_1": "a", "text_2": "b"}, "model", "has 3 labels, and scores need one"),
        ("CreateRerank", {"query": "a", "documents": ["b"]}, "model", "has 3 labels, and scores need one"),
    ],
)
async def test_what_a_classifier_cannot_do_is_named(
    start_router: StartRouter, method: str, body: Any, param: str, words: str
) -> None:
    scheduler = classifier(*LABELS)
    api = await start_router(scheduler)
    refused = await api.refused(method, body)
    assert refused.error["param"] == param
    assert words in refused.error["message"]
    assert not scheduler.submits


async def test_an_answer_has_a_largest_number_of_scores(start_router: StartRouter) -> None:
    scheduler = classifier(*["x"] * 65_536)
    api = await start_router(scheduler)
    refused = await api.refused("CreateClassification", {"input": ["a"] * 129})
    assert refused.error["param"] == "input"
    assert "Expected at most 128 elements, but got 129" in refused.error["message"]
    assert not scheduler.submits
    assert len((await api.post("CreateClassification", {"input": ["a"] * 2})).json["data"]) == 2


async def test_other_models_do_not_classify(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    refused = await api.refused("CreateClassification", {"input": "x"})
    assert refused.error["message"] == f"The model `{MODEL}` is not a classifier."
    assert refused.error["param"] == "model"


async def test_a_decoder_without_output_layer_generates_nothing(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    scheduler.model.has_no_output_layer = True
    scheduler.model.embedding.CopyFrom(pooling_pb2.EmbeddingInfo(size=4))
    api = await start_router(scheduler)
    with pytest.raises(RefusedError) as caught:
        await api.complete()
    assert "is a decoder without output layer: it serves embeddings" in caught.value.error["message"]
    assert (await api.get("ListModels")).json["data"][0]["tasks"] == ["embed"]


async def test_a_pair_that_is_too_long_is_refused_or_cut(start_router: StartRouter) -> None:
    scheduler = classifier("relevant")
    api = await start_router(scheduler)
    long = "ab " * MAX_MODEL_LEN
    refused = await api.refused("CreateRerank", {"query": "what", "documents": ["short", long]})
    assert refused.error["param"] == "documents[1]"
    assert "maximum context length" in refused.error["message"]
    refused = await api.refused("CreateScore", {"text_1": long, "text_2": ["a"]})
    assert refused.error["param"] == "text_1"
    half = "x y " * (MAX_MODEL_LEN // 8) + "z" * 40
    refused = await api.refused("CreateScore", {"text_1": half, "text_2": [half]})
    assert refused.error["param"] == "text_2[0]"
    assert "together with 'text_1'" in refused.error["message"]
    await api.post("CreateRerank", {"query": "what", "documents": [long], "truncate_prompt_tokens": 12})
    assert len(unpack(scheduler.submits[-1].prompt_token_ids)) == 12
    async with AsyncClient(api.address) as client:
        with pytest.raises(QuireError) as caught:
            await client.score("what", ["short", long])
        assert caught.value.param == "text_2[1]"


async def test_models_say_that_they_classify(start_router: StartRouter) -> None:
    api = await start_router(classifier(*LABELS))
    assert (await api.get("ListModels")).json["data"][0]["tasks"] == ["classify"]
    async with AsyncClient(api.address) as client:
        assert (await client.models())[0].tasks == ("classify",)


async def test_an_invocation_with_inputs_goes_to_what_the_model_does(start_router: StartRouter) -> None:
    api = await start_router(classifier(*LABELS))
    # /classify ignores `dimensions`, and /v1/embeddings refuses 0.
    reply = (await api.post("CreateInvocation", {"input": "Hello", "dimensions": 0})).json
    assert reply["data"][0]["num_classes"] == 3
    for model in (5, "unknown"):
        refused = await api.refused("CreateInvocation", {"input": "Hello", "model": model})
        assert refused.error["param"] == "model"
