"""OpenAI's API, and additional paths of vLLM, SageMaker and Cohere."""

from services.router.apis.openai.classify import ClassificationService
from services.router.apis.openai.cohere import CohereService
from services.router.apis.openai.completions import CompletionService
from services.router.apis.openai.embeddings import EmbeddingService
from services.router.apis.openai.paths import OPERATIONS
from services.router.apis.openai.pooling_paths import POOLING_OPERATIONS
from services.router.apis.openai.scoring import ScoringService
from services.router.apis.openai.servicer import OpenAIServicer

__all__ = [
    "OPERATIONS",
    "POOLING_OPERATIONS",
    "ClassificationService",
    "CohereService",
    "CompletionService",
    "EmbeddingService",
    "OpenAIServicer",
    "ScoringService",
]
