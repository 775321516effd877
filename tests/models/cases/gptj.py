from tests.models.case import Case

CASES = [
    Case("gptj", {"rotary_dim": 8}, mechanism="a head with a bias, and pairs of neighbours rotated"),
    Case("gptj", {"rotary_dim": 16, "tie_word_embeddings": True, "n_inner": 96}, variant="tied"),
    Case("codegen", {"rotary_dim": 4, "n_head": 8}, mechanism="rows of a joined projection in another order"),
]
