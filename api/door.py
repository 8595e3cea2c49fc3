"""Refusing at the door: what a request costs that comes while the queue is full.

A burst of thousands must not be felt by the streams that run. Two things see to it: a request that would be refused
anyway is answered from its first bytes, without a task, a parser or a decoded body; and connections are let in no
faster than `REFUSALS_PER_TURN` in each `TURN_S` as long as the queue is full, while the kernel holds the others.

Only what is plain is answered here: a whole POST to a generating route, with a good key, from no web page. All else
takes the long way, where the gate says the same.
"""

import errno
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

import trio

from ..engine.core.errors import TrioletError
from .dialect import Dialect, dialect_of
from .keys import KeyRing, authorization_of
from .terms import REQUEST_ID, new_request_id

REFUSALS_PER_TURN = 4
TURN_S = 0.008
"""Up to 500 connections a second while the queue is full: some 5 % of one core (bench/burst.py)."""

HEAD_WAIT_S = 1.0
"""How long a connection may take to send its first bytes before it is treated like any other."""

PEEK_BYTES = 64 * 1024
"""What is longer takes the long way."""

_CLIENTS_FAULTS = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EPROTO,
        errno.ETIMEDOUT,
        getattr(errno, "ENONET", errno.ENETDOWN),  # Linux alone has it.
    }
)
"""What accept() may report of a connection that has failed meanwhile (accept(2)): the next one may be good. Anything
else but a lack of descriptors ends the server."""

_LONG_WAY = frozenset({b"origin", b"transfer-encoding", b"expect", b"upgrade"})

Refusal = Callable[[], TrioletError | None]
"""Why a request that came now would be refused, whatever is in it; None when it might be served."""


class Door:
    """What stands before the parser of each connection. It reads no socket itself."""

    def __init__(self, refusal: Refusal, keys: KeyRing, paths: Iterable[str], root: str = "") -> None:
        """`paths`: the routes that generate; a proxy may have left `root` in front."""
        self._refusal = refusal
        self._keys = keys
        self._paths = {(prefix + path).encode(): path for path in paths for prefix in ("", root)}

    @property
    def is_closed(self) -> bool:
        """Whether a request that came now would be refused."""
        return self._refusal() is not None

    def answer(self, data: bytes) -> bytes | None:
        """The whole answer to a client whose first bytes these are; None where it must take the long way."""
        error = self._refusal()
        return None if error is None else self._answer(data, error)

    def _answer(self, data: bytes, error: TrioletError) -> bytes | None:
        """The whole answer to a request that is there whole; None where it is not, or not plain."""
        head, end, body = data.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        method, _, rest = first.partition(b" ")
        target, _, version = rest.partition(b" ")
        if not end or method != b"POST" or target not in self._paths or version not in (b"HTTP/1.1", b"HTTP/1.0"):
            return None
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            name = name.lower()
            if not colon or not name.strip() == name != b"" or name in headers or name in _LONG_WAY:
                return None
            headers[name] = value.strip()
        length = headers.get(b"content-length", b"")
        if not (length.isdigit() and len(length) < 10 and int(length) == len(body)):
            return None
        path = self._paths[target]
        try:
            self._keys.admit(authorization_of(headers.get(b"authorization"), headers.get(b"x-api-key")), target, path)
        except TrioletError:
            return None
        return _response(error, dialect_of(path), headers.get(b"x-request-id", b"").decode("latin-1"))


def _response(error: TrioletError, dialect: Dialect, request_id: str) -> bytes:
    http = dialect.http(error)
    body = dialect.body(http)
    if not REQUEST_ID.fullmatch(request_id):
        request_id = new_request_id()
    lines = [
        b"HTTP/1.1 %d " % http.status,
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        *(b"%b: %b" % pair for pair in http.headers),
        *(b"%b: %b" % (name, request_id.encode()) for name in dialect.id_headers),
        b"connection: close",
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class PacedListener(trio.abc.Listener[trio.SocketStream]):
    """A listener that, while the door is closed, accepts connections at a pace, and keeps those that the door answers.

    The others then wait in the kernel, where they cost nothing.
    """

    def __init__(self, listening: socket.socket, door: Door, *, answers: bool) -> None:
        """Without `answers` it only keeps the pace: where TLS is spoken nothing is answered, or read, in the clear."""
        self._listening = listening
        self._door = door
        self._answers = answers
        self._num_in_turn = 0

    async def accept(self) -> trio.SocketStream:
        """The next connection that is to be served. Raises OSError when there are no descriptors left."""
        while True:
            await self._pace()
            try:
                client, _ = self._listening.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._listening)
                continue
            except OSError as error:
                if error.errno in _CLIENTS_FAULTS:
                    continue
                raise
            if not self._refuse(client):
                return trio.SocketStream(trio.socket.from_stdlib_socket(client))

    async def aclose(self) -> None:
        self._listening.close()
        await trio.lowlevel.checkpoint()

    async def _pace(self) -> None:
        if self._door.is_closed and self._num_in_turn >= REFUSALS_PER_TURN:
            self._num_in_turn = 0
            await trio.sleep(TURN_S)
        else:
            await trio.lowlevel.checkpoint()
        self._num_in_turn += 1

    def _refuse(self, client: socket.socket) -> bool:
        """Answer and close `client` if its request lies there already, whole, and is one to refuse."""
        if not (self._answers and self._door.is_closed):
            return False
        client.setblocking(False)
        try:
            data = client.recv(PEEK_BYTES, socket.MSG_PEEK)
            answer = self._door.answer(data)
            if answer is None:
                return False
            client.recv(len(data))  # Bytes left unread would make the close a reset.
            client.send(answer)
        except OSError:
            return False
        client.close()
        return True


async def refuse_at(door: Door, stream: trio.SocketStream) -> bool:
    """Answer and close a connection whose request comes soon, and is one to refuse: its bytes had not come with it."""
    if not door.is_closed:
        return False
    data = b""
    with suppress(OSError), trio.move_on_after(HEAD_WAIT_S):
        data = await stream.socket.recv(PEEK_BYTES, socket.MSG_PEEK)
    answer = door.answer(data)
    if answer is None:
        return False
    with suppress(OSError):  # The time is not over any more: what has been taken from the socket must be answered.
        await stream.socket.recv(len(data))
        await stream.socket.send(answer)
    await stream.aclose()
    return True
