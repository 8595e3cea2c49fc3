"""Each script of this folder against `triolet serve`, in processes of their own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith(("_", "test_")))

SERVE = "from triolet.api.cli import main; main(['serve', '--port', '0', '--kv-cache-memory', '200M'])"


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """A server with default settings but for the port and the memory; told to stop at the end."""
    root = FOLDER.parents[1]
    process = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True, cwd=root)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Triolet is ready: http")
        yield line.split()[-1]
        process.terminate()
        assert process.wait(timeout=60) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_client_needs_nothing_but_the_base_url(script: Path, base_url: str) -> None:
    """The script finds all that it looks for."""
    done = subprocess.run([sys.executable, script, base_url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
