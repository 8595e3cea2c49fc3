"""What goes over the socket between the engine and its runner process: frames of msgpack.

    [length of the payload: 4 bytes][kind: 1 byte][payload]

Plans and results are encoded as the attrs classes they are, one frame each. Pure but for the sockets it is handed; both
ends are the same program, so a frame that cannot be decoded is our bug.
"""

import enum
import socket
import struct
from collections.abc import Iterator

import attrs
import msgspec

from .core.plan import StepPlan, StepResult

_HEADER = struct.Struct("<IB")
_ENCODER = msgspec.msgpack.Encoder()
_PLANS = msgspec.msgpack.Decoder(StepPlan)
_RESULTS = msgspec.msgpack.Decoder(StepResult)


class Kind(enum.IntEnum):
    """What a frame holds. The engine sends the first group, the runner process the second."""

    START = 1
    PLAN = 2
    RESET = 3

    STARTED = 10
    """What `start` is to give back, as the factory made it."""
    START_FAILED = 11
    PROGRESS = 12
    LOG = 13
    RESULT = 14
    STEP_FAILED = 15
    READY = 16
    """The batch is forgotten, and the device computes."""


@attrs.frozen(kw_only=True)
class Start:
    """To a new process: make a runner."""

    factory: str
    """`package.module:function`, called with the order and a function for progress; gives the runner and an answer."""
    order: bytes
    """msgpack, for the factory to decode."""
    log_level: int


@attrs.frozen(kw_only=True)
class Failure:
    """An error of the other side."""

    kind: str
    """The name of its type."""
    message: str = ""
    out_of_memory: bool = False


@attrs.frozen(kw_only=True)
class Progress:
    """Loading goes on."""

    what: str
    done: int
    total: int | None


@attrs.frozen(kw_only=True)
class Log:
    """A log record of the runner process."""

    name: str
    level: int
    text: str


def encode(kind: Kind, message: object = None) -> bytes:
    """A whole frame."""
    payload = _ENCODER.encode(message)
    return _HEADER.pack(len(payload), kind) + payload


def decode_plan(payload: bytes) -> StepPlan:
    return _PLANS.decode(payload)


def decode_result(payload: bytes) -> StepResult:
    return _RESULTS.decode(payload)


class FrameBuffer:
    """Cuts a stream of bytes into frames. It holds at most one frame that is not whole."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """The frames that these bytes complete. Exhaust it before the next call."""
        buffer = self._bytes
        buffer += data
        start = 0
        while len(buffer) - start >= _HEADER.size:
            length, kind = _HEADER.unpack_from(buffer, start)
            end = start + _HEADER.size + length
            if len(buffer) < end:
                break
            yield Kind(kind), bytes(buffer[start + _HEADER.size : end])
            start = end
        del buffer[:start]


def receive_frame(connection: socket.socket) -> tuple[Kind, bytes] | None:
    """The next frame of a blocking socket; None when the other end is closed."""
    header = _receive_exactly(connection, _HEADER.size)
    if header is None:
        return None
    length, kind = _HEADER.unpack(header)
    payload = _receive_exactly(connection, length)
    return None if payload is None else (Kind(kind), payload)


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < size:
        data = connection.recv(size - len(pieces))
        if not data:
            return None
        pieces += data
    return bytes(pieces)
