"""What every route needs, in one frozen object: the engine, the configuration, who is open, and the model's names."""

from typing import TYPE_CHECKING

import attrs
import trio

from ..engine.core.errors import ModelNotFound, TrioletError
from .config import ServerConfig
from .lifecycle import Lifecycle
from .page.entrance import Entrance
from .responses.registry import Responses

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from .metrics import Metrics


@attrs.frozen(kw_only=True)
class Service:
    """Built once, when the engine is up."""

    engine: "Engine"
    config: ServerConfig
    lifecycle: Lifecycle
    metrics: "Metrics"
    version: str
    responses: Responses = attrs.field(
        default=attrs.Factory(lambda service: Responses(service.config), takes_self=True), init=False
    )
    entrance: Entrance = attrs.field(
        default=attrs.Factory(lambda service: Entrance(service.config), takes_self=True), init=False
    )
    """Of the page."""
    background: trio.Nursery | None = None
    """For what goes on when its client has its answer; as long as the server runs."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """What clients may call the model; the first name is the default."""
        return self.config.served_model_name or (self.engine.model_name,)

    def check_model(self, name: str | None) -> str:
        """The name to answer with. ModelNotFound when `name` is not served."""
        if not name:
            return self.model_names[0]
        if name not in self.model_names:
            known = ", ".join(f"`{known}`" for known in self.model_names)
            raise ModelNotFound(
                f"The model `{name[:256]}` does not exist here; this server has {known}.", param="model"
            )
        return name

    def refusal(self) -> TrioletError | None:
        """Why a generating request that came now would be refused, whatever is in it; None when it may be served."""
        return self.lifecycle.closed_because or self.engine.overload()

    @property
    def health(self) -> str | None:
        """Why no request would be answered now; None when all is well."""
        closed = self.lifecycle.closed_because
        return self.engine.health or (closed.message if closed is not None else None)
