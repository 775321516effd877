from tests.models.case import Case
from tests.models.tiny import GQA

FACTORS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.15,
    "residual_multiplier": 0.4,
    "logits_scaling": 5.0,
}

CASES = [
    Case("granite", GQA | FACTORS, mechanism="factors of embeddings, scores and residual branches"),
    Case("granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, variant="biases"),
]
