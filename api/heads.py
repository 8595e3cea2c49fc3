"""What is checked in the head of a request, whichever protocol it came with."""

from urllib.parse import urlsplit

from .body import Headers, header
from .errors import WrongMediaType

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
    origin = header(headers, b"origin")
    if origin is None or "*" in allowed_origins or origin.decode("latin-1") in allowed_origins:
        return
    if urlsplit(origin).netloc != (header(headers, b"host") or b""):
        raise WrongMediaType("A web page must say what it sends: `Content-Type: application/json`.")
