"""Chooses among the models that are served: which one a name means, and which of its versions a conversation gets.

Versions share new conversations by weighted rendezvous hashing: every version has a score for every key, and the
version with the highest score gets the conversation. So all routers choose the same version without communicating, a
chat stays on its version, and a version whose weight grows takes conversations from the others only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from services.router.model import ServedModel
from shared.model_label import model_label

# Returns the placement key of a conversation (shared/placement.py). It is called only if there is something to choose.
Key = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Offer:
    """A version of a model, and its share of new conversations relative to the other versions' weights."""

    model: ServedModel
    weight: int

    @property
    def name(self) -> str:
        return self.model.info.name

    @property
    def version(self) -> str:
        return self.model.info.version

    @property
    def names(self) -> list[str]:
        """All names by which requests can ask for this version, the name with the version included."""
        return list(dict.fromkeys((self.name, *self.model.info.aliases, model_label(self.name, self.version))))


def find(offers: Sequence[Offer], name: str, key: Key | None = None) -> ServedModel | None:
    """Returns the model that a request for `name` gets; None if there is none. `key`: of the request's conversation.
    Without one, the request gets the main version: the one with the greatest weight."""
    candidates = _named(offers, name)
    if candidates:
        return _by_weight([offer for offer in candidates if offer.weight], key)
    # No name on the Hugging Face hub contains an @. A served name that does is found above.
    base, _, version = name.rpartition("@")
    if version:
        for offer in _named(offers, base):
            if offer.version == version:
                return replace(offer.model, is_pinned=True)
    return None


def _named(offers: Iterable[Offer], name: str) -> list[Offer]:
    """Returns the versions of the model that `name` means. A model's own name takes precedence over another one's
    alias. Of several models with one alias, the first in alphabetical order gets the requests, in every router."""
    offers = list(offers)
    own = [offer for offer in offers if offer.name == name]
    aliased = [offer for offer in offers if name in offer.model.info.aliases]
    first = min((offer.name for offer in aliased), default=None)
    return own or [offer for offer in aliased if offer.name == first]


def _by_weight(offers: Sequence[Offer], key: Key | None) -> ServedModel | None:
    if not offers:
        return None
    if key is None or len(offers) == 1:
        return max(offers, key=lambda offer: (offer.weight, offer.version)).model
    of_conversation = key()
    return max(offers, key=lambda offer: (_score(of_conversation, offer), offer.version)).model


def _score(key: bytes, offer: Offer) -> float:
    """Returns the score of weighted rendezvous hashing (Schindelhauer and Schomaker, 2005): weight / -ln(u), with u
    uniform in (0, 1)."""
    digest = blake2b(b"version\0" + offer.version.encode(), key=key, digest_size=8).digest()
    uniform = (int.from_bytes(digest, "big") + 0.5) / 2**64
    # The largest digests round to exactly 1.
    return offer.weight / -math.log(min(uniform, 1 - 2**-53))
