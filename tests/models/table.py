"""Writes the tables of models in docs/models.md: `python -m tests.models.table`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from transformers.models.auto import modeling_auto

from services.worker.models import MEANINGS, list_supported
from services.worker.models.bare import BARE
from tests.models.case import Case
from tests.models.cases import ALL, BY_MODULE
from tests.models.encoder_cases import CASES, CLASSIFIERS
from tests.models.twins import count_distinct

ENCODERS = [*CASES, *CLASSIFIERS]
DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
_BEGIN, _END = "<!-- begin: written by tests/models/table.py -->\n", "<!-- end -->"
WAYS = {"auto": "Quire's own", "native": "Quire's own", "transformers": "transformers'"}
# Tests of architectures that transformers has no class for, or another class than published checkpoints name.
OTHER_TESTS: Mapping[str, str] = {
    "Emu3ForCausalLM": "tests/unit/worker/test_model_families.py",
    "InternLM3ForCausalLM": "tests/unit/worker/test_model_families.py",
    "IQuestCoderForCausalLM": "tests/unit/worker/test_model_families.py",
    "InternVLChatModel": "tests/unit/worker/test_text_part.py",
    "MPTForCausalLM": "tests/models/test_older_families.py",
    "RWForCausalLM": "tests/models/test_older_families.py",
    "Qwen3VLMoeTextModel": "tests/models/cases/text_part.py",
    "KimiK25ForConditionalGeneration": "tests/models/test_wrapped_text.py",
    "KimiVLForConditionalGeneration": "tests/models/test_published_configs.py",
    **dict.fromkeys(
        ("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration"),
        "tests/models/test_wrapped_text.py",
    ),
    **{name: "tests/models/test_embedding_decoders.py" for name in BARE if name.endswith("Model")},
    **{name: "tests/models/test_classifiers.py" for name in BARE if name.endswith("Classification")},
}


def replaced(text: str) -> str:
    """Returns the document with up-to-date tables."""
    before, _, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert end, f"{DOCUMENT} lacks the marks of the table"
    return f"{before}{_BEGIN}{_tables()}{_END}{after}"


def _tables() -> str:
    by_type = _group_by_type(ALL)
    encoders = _group_by_type(ENCODERS)
    return "".join(
        (
            f"{len(by_type)} types of decoders and {len(encoders)} of encoders are compared with transformers, "
            f"in {len(ALL) + len(ENCODERS)} configurations. Some types of decoders differ in name only, such as "
            "`internlm3` and `llama`, or the language models of `llava` and `llama`. "
            f"{count_distinct(by_type)} types are left if those count once.\n\n",
            "| decoder | architecture in `config.json` | tests of Quire's own code | tests of transformers' code |\n",
            "|---|---|---|---|\n",
            *(_row(model_type, cases) for model_type, cases in sorted(by_type.items())),
            "\n| encoder | architectures in `config.json` | tests |\n",
            "|---|---|---|\n",
            *(_encoder_row(model_type, cases) for model_type, cases in sorted(encoders.items())),
            "\n| other name in `config.json` | how it runs | tests |\n",
            "|---|---|---|\n",
            *(
                f"| `{name}` | {MEANINGS[kind]} | {_link(OTHER_TESTS[name])} |\n"
                for name, kind in sorted(other_names().items())
            ),
        )
    )


def other_names() -> dict[str, str]:
    """Returns the architectures that no case has, with how they run."""
    listed = {name for case in ALL for name in _architectures(case)}
    listed |= {name for case in ENCODERS for name in _architectures_of_encoder(case)}
    return {one.architecture: one.kind for one in list_supported() if one.architecture not in listed}


def _row(model_type: str, cases: Iterable[Case]) -> str:
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(name for case in cases for name in _architectures(case)))
    own = Counter(_module(case) for case in cases if case.implementation != "transformers")
    text_only = ", text only" if any("text_config" in case.options for case in cases) else ""
    of_own = ", ".join(f"{count} in {_link(module)}" for module, count in sorted(own.items()))
    of_transformers = sum(case.implementation == "transformers" for case in cases)
    return f"| `{model_type}` | {names} | {of_own or '–'}{text_only} | {of_transformers or '–'} |\n"


def _encoder_row(model_type: str, cases: list[Case]) -> str:
    names = ", ".join(f"`{name}`" for name in _architectures_of_encoder(cases[0]))
    return f"| `{model_type}` | {names} | {len(cases)} in {_link('tests/models/encoder_cases.py')} |\n"


def _architectures(case: Case) -> list[str]:
    """Returns the class with which transformers saves a decoder."""
    return _named("MULTIMODAL_LM" if "text_config" in case.options else "CAUSAL_LM", case.model_type)


def _architectures_of_encoder(case: Case) -> list[str]:
    """Returns the classes of an encoder with the heads that Quire leaves out or runs. A test of one is a test of the
    encoder in all of them."""
    heads = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", head).upper() for head in sorted({case.head for case in ENCODERS})]
    names = {name for head in heads for name in _named(head, case.model_type)}
    return sorted(names & {one.architecture for one in list_supported()})


def _named(task: str, model_type: str) -> list[str]:
    names = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES" if task else "MODEL_MAPPING_NAMES")
    return [names[model_type]] if model_type in names else []


def _group_by_type(cases: Iterable[Case]) -> dict[str, list[Case]]:
    by_type: dict[str, list[Case]] = {}
    for case in cases:
        by_type.setdefault(case.model_type, []).append(case)
    return by_type


def _module(case: Case) -> str:
    (name,) = (name for name, cases in BY_MODULE.items() if case in cases)
    return f"tests/models/cases/{name}.py"


def _link(path: str) -> str:
    return f"[{Path(path).stem}](../{path})"


if __name__ == "__main__":
    DOCUMENT.write_text(replaced(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
