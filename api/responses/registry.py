"""The responses that a server knows: those that run, and those that have ended and are stored.

Each belongs to the caller who asked for it: another one's is as unknown as one that never was. Synchronous but for
`ended`, and on the trio clock.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import attrs
import msgspec
import trio

from ...engine.core.errors import InvalidRequest
from ..config import ServerConfig
from ..errors import NotFound
from ..lifecycle import CANCELLED, OpenRequest
from .document import Response
from .store import Key, ResponseStore, Stored

FORGET_S = 60.0
"""How often, at most, what is too old is looked for while nobody asks."""


@attrs.define(kw_only=True, eq=False)
class _Running:
    response: Response
    request: OpenRequest
    ended: trio.Event = attrs.field(factory=trio.Event)
    is_deleted: bool = False


class Responses:
    """One for a server."""

    def __init__(self, config: ServerConfig) -> None:
        self.max_bytes = config.response_store_size
        self._store = ResponseStore(max_bytes=config.response_store_size, max_age_s=config.response_store_age)
        self._running: dict[Key, _Running] = {}

    # For who answers.

    def hold(self, response: Response) -> Callable[[OpenRequest], AbstractContextManager[None]]:
        """For `Job.hold`: the response is known as one that runs while the scope is open, and has ended after it."""
        return partial(self._held, response)

    @contextmanager
    def _held(self, response: Response, request: OpenRequest) -> Iterator[None]:
        key = (response.asked.caller, response.asked.id)
        running = self._running[key] = _Running(response=response, request=request)
        try:
            yield
        except Exception:
            raise  # Whoever tells the client tells the response too (`Response.failure`), at once.
        except BaseException:
            response.abandon()
            raise
        finally:
            del self._running[key]
            running.ended.set()

    def keep(self, response: Response) -> bool:
        """It has ended: store it, unless that is not wanted, or it was deleted meanwhile. False: it is not stored, for
        one of these reasons or because it is larger than the store."""
        key = (response.asked.caller, response.asked.id)
        running = self._running.get(key)
        is_deleted = running is not None and running.is_deleted
        is_wanted = response.asked.store and response.is_known and not is_deleted
        is_kept = is_wanted and self._store.put(key, response.stored(), now_s=trio.current_time())
        if running is not None:
            running.ended.set()  # Its client may still be reading.
        return is_kept

    def chain(self, caller: str, response_id: str) -> list[Stored]:
        """A stored response that has ended, and all that it continues, in order. Raises NotFound or InvalidRequest."""
        if self._open(caller, response_id) is not None:
            raise InvalidRequest(
                f"The response {response_id[:128]!r} has not ended yet: wait until it has.",
                param="previous_response_id",
            )
        return self._store.chain(caller, response_id, now_s=trio.current_time())

    # For who asks.

    def body(self, caller: str, response_id: str) -> bytes:
        """A response as it is now. Raises NotFound."""
        running = self._open(caller, response_id)
        if running is not None and running.response.asked.store:
            return running.response.body()
        return self._stored(caller, response_id).body

    def input_items(self, caller: str, response_id: str) -> bytes:
        """Raises NotFound."""
        running = self._open(caller, response_id)
        if running is not None and running.response.asked.store:
            return running.response.asked.input_items
        return self._stored(caller, response_id).input_items

    async def cancel(self, caller: str, response_id: str) -> bytes:
        """End one that runs, and give it as it then is. One that was cancelled before is given again.

        Raises NotFound; InvalidRequest where it has ended otherwise.
        """
        running = self._open(caller, response_id)
        if running is not None:
            running.request.end(CANCELLED)
            await running.ended.wait()
            return running.response.body()
        body = self._stored(caller, response_id).body
        status = _status(body)
        if status != CANCELLED:
            raise InvalidRequest(f"The response {response_id[:128]!r} cannot be cancelled: it is {status}.")
        return body

    def delete(self, caller: str, response_id: str) -> None:
        """Forget it; one that runs is ended. Raises NotFound."""
        running = self._open(caller, response_id)
        if running is not None and running.response.asked.store and not running.is_deleted:
            running.is_deleted = True
            running.request.end(CANCELLED)
        elif not self._store.delete((caller, response_id)):
            raise _unknown(response_id)

    async def forget_old(self) -> None:
        """Lets go what is too old, also where nobody asks. Runs until cancelled."""
        while True:
            await trio.sleep(FORGET_S)
            self._store.forget_old(now_s=trio.current_time())

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_stored(self) -> int:
        return len(self._store)

    @property
    def num_stored_bytes(self) -> int:
        return self._store.num_bytes

    def _open(self, caller: str, response_id: str) -> _Running | None:
        """One that has not ended."""
        running = self._running.get((caller, response_id))
        return None if running is None or running.ended.is_set() else running

    def _stored(self, caller: str, response_id: str) -> Stored:
        stored = self._store.get((caller, response_id), now_s=trio.current_time())
        if stored is None:
            raise _unknown(response_id)
        return stored


def _unknown(response_id: str) -> NotFound:
    return NotFound(f"There is no response {response_id[:128]!r}.")


class _Status(msgspec.Struct):
    status: str


def _status(body: bytes) -> str:
    return msgspec.json.decode(body, type=_Status).status
