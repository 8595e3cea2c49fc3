"""The labs: each tells its story of the built-in model, and everything that it claims is so."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from labs import backends, batching, debugger, interference, logline, preemption, prefixes, storm
from labs.lab import Lab, run
from triolet.model.attention import registry

ROOT = Path(__file__).resolve().parents[2]
LABS = (batching, prefixes, preemption, interference, backends, debugger, logline, storm)


@pytest.fixture(autouse=True)
def own_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lab registers an attention backend of its own: it is gone afterwards."""
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.__name__.partition(".")[2])
def test_a_lab_ends_well_and_shows_what_it_has_seen(lab: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0, a title, at least five claims, none of them false."""
    status = lab.main()
    told = capsys.readouterr().out
    assert status == 0, told
    assert told.startswith(f"\n{lab.TITLE}\n")
    assert told.count("  ok     ") >= 5
    assert "FALSE" not in told


def test_a_claim_that_does_not_hold_is_marked_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status says so, and the last line how many there were."""

    async def story(lab: Lab) -> None:
        lab.claim("one is one", True)
        lab.claim("one is two", 1 == 2)

    assert run("Two claims", story) == 1
    told = capsys.readouterr().out
    assert "  ok     one is one\n  FALSE  one is two\n" in told
    assert told.endswith("1 claims did not hold.\n")


def test_a_lab_is_a_command() -> None:
    """`python -m labs.NAME` runs it, and its status is the process's."""
    ran = subprocess.run([sys.executable, "-m", "labs.debugger"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "(Pdb) p plan.step" in ran.stdout


def test_every_lab_is_run_here_and_told_of_in_the_docs() -> None:
    """A file more in labs/ is a lab more in this test and in docs/labs.md."""
    files = {path.stem for path in (ROOT / "labs").glob("*.py")} - {"__init__", "lab"}
    assert files == {lab.__name__.partition(".")[2] for lab in LABS}
    page = (ROOT / "docs" / "labs.md").read_text()
    assert all(f"python -m labs.{name}" in page for name in files)
