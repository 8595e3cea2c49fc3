"""Each script of this folder against `triolet serve`, in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith(("_", "conftest", "test_")))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_client_needs_nothing_but_the_base_url(script: Path, base_url: str) -> None:
    """The script finds all that it looks for."""
    done = subprocess.run([sys.executable, script, base_url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
