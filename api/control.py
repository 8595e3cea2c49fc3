"""What looks at, and changes, the running server: the stories of requests, and the settings that can change live.

Quart views over one service. Their paths are control routes (`keys.CONTROL_PREFIXES`): with an admin key set, no other
key opens them.
"""

from typing import Any

import attrs
import msgspec
from quart import Response, request

from ..engine.controls import Settings
from .errors import Conflict, NotFound
from .service import Service
from .settings import SettingsChange
from .stories import list_of, read_state, story_of
from .views import answer_json, read_body


class ControlRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._engine = service.engine

    def routes(self) -> list[tuple[str, str, Any]]:
        return [
            ("/v1/requests", "GET", self.stories),
            ("/v1/requests/<request_id>", "GET", self.story),
            ("/admin/settings", "GET", self.settings),
            ("/admin/settings", "PATCH", self.change),
            ("/admin/pause", "POST", self.pause),
            ("/admin/resume", "POST", self.resume),
            ("/admin/reset_prefix_cache", "POST", self.reset_prefix_cache),
        ]

    async def stories(self) -> Response:
        """Open requests, and the last that ended; `?state=` chooses."""
        state = read_state(request.args.get("state"))
        return answer_json(list_of(self._engine.stories(), state))

    async def story(self, request_id: str) -> Response:
        """One request's; of several of that name, the newest's."""
        found = self._engine.stories(request_id)
        if not found:
            raise NotFound(f"There is no request {request_id[:128]!r}, or none that is remembered.")
        return answer_json(story_of(found[0]))

    async def settings(self) -> Response:
        return _settings(self._engine.controls.settings)

    async def change(self) -> Response:
        """From the next step on."""
        body = await read_body(SettingsChange)
        return _settings(await self._engine.controls.change(**msgspec.structs.asdict(body)))

    async def pause(self) -> Response:
        return _settings(await self._engine.controls.pause(True))

    async def resume(self) -> Response:
        return _settings(await self._engine.controls.pause(False))

    async def reset_prefix_cache(self) -> Response:
        if not await self._engine.controls.reset_prefix_cache():
            raise Conflict("Requests are running and hold blocks: pause and let them finish, or try again later.")
        return answer_json({"object": "prefix_cache.reset", "reset": True})


def _settings(settings: Settings) -> Response:
    return answer_json({"object": "settings", **attrs.asdict(settings)})
