"""API keys: who a client is, and which routes its key opens. Pure: no HTTP, no trio.

Default deny. With any key set, only the exact target /health is open (and to a browser that has given a key the page's
files: `page/entrance.py`). An API key opens everything but the control
routes, which take an admin key where one is set; an admin key opens everything. A key is compared by its SHA-256, with
every key there is and in constant time, so that neither how wrong a key is nor which key it is shows in the time taken.
"""

import hashlib
import hmac
import re

import attrs

from ..engine.core.errors import Unauthorized
from .errors import Forbidden

OPEN_PATH = b"/health"
"""Compared with the request's target as it came, byte for byte."""

CONTROL_PREFIXES = ("/v1/requests", "/v1/live", "/admin")
"""What looks at, or changes, other clients' requests or the server. The one list of them."""

CLIENT_PATHS = re.compile(r"/v1/requests/[^/]+/cancel")
"""Below those, what a client may do to a request of its own; the route checks whose it is."""

_SLASHES = re.compile(r"/{2,}")


@attrs.frozen(kw_only=True)
class Caller:
    """Who sent a request."""

    identity: str = ""
    """The same for all requests with one key, and says nothing about the key; empty where no key is asked for."""
    is_admin: bool = False


ANYONE = Caller(is_admin=True)
"""The caller of a server without keys."""


def is_control(path: str) -> bool:
    """Whether a (decoded) path is a control route, or would be once its slashes are merged."""
    path = _SLASHES.sub("/", path)
    if CLIENT_PATHS.fullmatch(path):
        return False
    return any(path == prefix or path.startswith(prefix + "/") for prefix in CONTROL_PREFIXES)


def authorization_of(authorization: bytes | None, api_key: bytes | None) -> bytes:
    """What a request shows, by its two headers: `Authorization`, or Anthropic's `x-api-key` where that is missing."""
    if authorization:
        return authorization
    return b"Bearer " + api_key if api_key else b""


class KeyRing:
    """The keys of a server."""

    def __init__(self, api_keys: tuple[str, ...], admin_keys: tuple[str, ...]) -> None:
        self._api = tuple(_digest(key.encode()) for key in api_keys)
        self._admin = tuple(_digest(key.encode()) for key in admin_keys)

    def admit(self, authorization: bytes, raw_path: bytes, path: str) -> Caller:
        """Who may come in with this header. `raw_path` is the target as it came, `path` what will be routed.

        Raises Unauthorized (401) without a key or with a wrong one, Forbidden (403) where the key is not an admin's.
        """
        if raw_path == OPEN_PATH:
            return Caller()
        control = is_control(path)
        if not self._api and not (self._admin and control):
            return ANYONE if not self._admin else Caller()
        caller = self._find(authorization)
        if caller is None:
            how = "a wrong API key" if authorization else "no API key"
            raise Unauthorized(f"The request has {how}: send one as `Authorization: Bearer KEY` (or as `x-api-key`).")
        if control and not caller.is_admin:
            raise Forbidden("This route takes an admin key (--admin-api-key).")
        return caller

    def _find(self, authorization: bytes) -> Caller | None:
        """Every digest is compared, whatever the ones before it gave."""
        scheme, _, key = authorization.partition(b" ")
        given = _digest(key.strip())
        in_api = [hmac.compare_digest(given, digest) for digest in self._api]
        in_admin = [hmac.compare_digest(given, digest) for digest in self._admin]
        if scheme.lower() != b"bearer" or not (any(in_api) or any(in_admin)):
            return None
        # Without admin keys every key is as good as one.
        return Caller(identity=_identity(given), is_admin=any(in_admin) or not self._admin)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _identity(digest: bytes) -> str:
    return hashlib.sha256(b"triolet caller\0" + digest).hexdigest()[:32]
