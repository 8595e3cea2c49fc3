"""What is checked in the head of a request, whichever protocol it came with."""

from urllib.parse import urlsplit

from .body import Headers, header
from .errors import MalformedHttp, WrongMediaType

HEAD_BYTES_MAX = 64 * 1024
"""Most bytes of a request's first line and headers; more is answered with 431."""

HEAD_TOO_LARGE = f"The head of a request may have at most {HEAD_BYTES_MAX} bytes."


def check_media_type(headers: Headers, allowed_origins: tuple[str, ...]) -> None:
    """A body must be called JSON, or nothing at all where it comes from no web page of another origin (but those that
    are named).

    A page may send any text to any address without asking, under three other names or none; calling it JSON makes its
    browser ask first. So a server that has no keys is still not at the mercy of each page that its user visits.
    Raises WrongMediaType.
    """
    given = header(headers, b"content-type")
    if given is not None:
        media_type = given.partition(b";")[0].strip().lower()
        if media_type == b"application/json" or media_type.endswith(b"+json"):
            return
        shown = media_type[:64].decode("latin-1")
        raise WrongMediaType(f"The body must be JSON: send `Content-Type: application/json`, not {shown!r}.")
    named = header(headers, b"origin")
    if named is None:
        return
    origin = named.decode("latin-1")
    if "*" in allowed_origins or origin in allowed_origins:
        return
    if _host_of(origin) != (header(headers, b"host") or b"").decode("latin-1"):
        raise WrongMediaType("A web page must say what it sends: `Content-Type: application/json`.")


def path_of(target: str) -> str:
    """The path of a target that may be a whole URL (RFC 9112, 3.2.2). Raises MalformedHttp for a URL that is none."""
    if target.startswith("/"):
        return target
    try:
        return urlsplit(target).path or "/"
    except ValueError:
        raise MalformedHttp("The target of the request is no URL.") from None


def _host_of(origin: str) -> str | None:
    """None: it has none, and comes from nowhere that is ours."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
