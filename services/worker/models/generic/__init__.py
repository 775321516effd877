"""Runs decoders of transformers as they are, on Quire's pages.

transformers' attention interface lets a server bring its own attention. So a decoder that goes through this interface
runs here without a module of its own in `decoders`: transformers computes the forward pass, and Quire computes the
attention, the products with matrices, and the mixtures of experts.

This room imports torch and transformers only when a model needs it.
"""

from services.worker.models.generic.architecture import find_generic

__all__ = ["find_generic"]
