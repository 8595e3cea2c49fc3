"""The user's cache folder: where downloads and converted tokenizers are kept between starts.

Imports the standard library alone. Everything in it can be deleted at any time and is made again.
"""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$TRIOLET_CACHE`, else `triolet` under `$XDG_CACHE_HOME`, else under `~/.cache`. Not created here."""
    if own := os.environ.get("TRIOLET_CACHE"):
        return Path(own).expanduser()
    # The XDG specification says that a relative path is to be ignored.
    shared = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "triolet"
