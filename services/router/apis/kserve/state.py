"""State of the server and its models, for the HTTP form and the gRPC form of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from services.router.dispatch import Placement
from services.router.model import ServedModel
from shared.model_label import model_label

SERVER_NAME = "quire"
# Extensions of the protocol that the server supports, by Triton's names.
EXTENSIONS = ["binary_tensor_data", "generate", "parameters"]
# Those that also apply to gRPC.
GRPC_EXTENSIONS = ["parameters"]


def server_version() -> str:
    try:
        return installed_version("quire")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0"


def name_and_version(path: str) -> tuple[str, str]:
    """Splits the model in a URL's path into name and version: `x/versions/1` gives ("x", "1"), and `x` gives
    ("x", "")."""
    name, between, version = path.rpartition("/versions/")
    return (name, version) if between else (path, "")


@dataclass(frozen=True, slots=True)
class ServerState:
    placement: Placement

    @property
    def is_ready(self) -> bool:
        """Whether at least one scheduler accepts requests."""
        return self.placement.is_ready

    async def model(self, name: str, version: str = "", key: Callable[[], bytes] | None = None) -> ServedModel:
        """Returns a model, or one version of it. `key`: as in ModelDirectory.find. Raises ApiError if it does not
        exist."""
        return await self.placement.models.find(model_label(name, version), key)

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Whether a scheduler of this model accepts requests and has a worker. Raises ApiError like `model`."""
        # Health probes need an immediate answer, and `model` could wait until a scheduler has started.
        models = self.placement.models
        return self.is_ready and models.is_ready(models.find_now(model_label(name, version)))
