"""The server that the clients of this folder talk to."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..limits import REAL_LIMIT_S

SERVE = "from triolet.api.cli import main; main(['serve', '--port', '0', '--kv-cache-memory', '200M'])"


@pytest.fixture(scope="session")
def base_url() -> Iterator[str]:
    """A server with default settings but for the port and the memory; told to stop at the end."""
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True, cwd=root)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Triolet is ready: http")
        yield line.split()[-1]
        process.terminate()
        assert process.wait(timeout=REAL_LIMIT_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
