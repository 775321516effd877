from tests.models.case import Case

CASES = [
    Case(
        "gpt_neo",
        {"attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 11},
        mechanism="windows by groups of layers, and scores that are not scaled",
    )
]
