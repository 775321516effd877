"""What the Open Inference Protocol asks, answered for both of its forms."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from services.router.dispatch import Placement
from services.router.errors import invalid
from services.router.model import ServedModel

SERVER_NAME = "quire"
# Of the protocol, by Triton's names.
EXTENSIONS = ["binary_tensor_data", "generate", "parameters"]


def server_version() -> str:
    try:
        return installed_version("quire")
    except PackageNotFoundError:  # a bare source tree
        return "0"


def name_and_version(path: str) -> tuple[str, str]:
    """Of a path's `x` and `x/versions/1`: `x`, and no version or 1."""
    name, between, version = path.rpartition("/versions/")
    return (name, version) if between else (path, "")


@dataclass(frozen=True, slots=True)
class ServerState:
    placement: Placement

    @property
    def is_ready(self) -> bool:
        """Whether some scheduler can take requests."""
        return self.placement.is_ready

    async def model(self, name: str, version: str = "") -> ServedModel:
        """Raises ApiError where there is no such model, or a version of it is asked for."""
        if version:
            raise invalid("Models have no versions here.", "version")
        return await self.placement.model(name)

    async def is_model_ready(self, name: str, version: str = "") -> bool:
        """Whether some scheduler of this model can take requests. Raises ApiError, as `model` does."""
        if not self.is_ready:
            # At once: to learn whether there is such a model may take as long as a scheduler takes to start.
            return False
        model = await self.model(name, version)
        return any(
            connection.is_ready and connection.info is not None and connection.info.name == model.info.name
            for connection in self.placement.connections
        )
