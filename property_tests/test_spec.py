"""The suite itself: its document is up to date, and it finds what it should in another allocator."""

import subprocess
import sys
from pathlib import Path

import pytest

from . import adapter

ROOT = Path(__file__).resolve().parents[1]


def pytest_with(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The suite in a process of its own, as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "property_tests", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_document_says_what_the_docstrings_say() -> None:
    """docs/allocator-spec.md is what docs/make_allocator_spec.py writes."""
    script = ROOT / "docs" / "make_allocator_spec.py"
    run = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_suite_can_be_pointed_at_another_allocator() -> None:
    """The toy's fault is found, named by its law, and the laws it has no part in are listed."""
    run = pytest_with("--allocator", "property_tests.examples.toy:ToyAdapter", "--hypothesis-profile", "kill")
    assert run.returncode == 1
    assert "K8: 0 blocks are left of" in run.stdout
    assert "K9: steps are in flight while blocks are released" in run.stdout
    assert "test_k7" not in run.stdout


def test_an_allocator_that_is_not_there_is_a_usage_error() -> None:
    """The message says what could not be found, or how to write it."""
    run = pytest_with("--allocator", "nowhere:Adapter")
    assert run.returncode == 4
    assert "--allocator nowhere:Adapter: No module named 'nowhere'" in run.stderr
    for path, message in (
        ("property_tests.adapter:Missing", "has no attribute 'Missing'"),
        ("nonsense", "--allocator takes package.module:Adapter, not 'nonsense'"),
        ("property_tests.test_spec:Confused", r"unknown features \['levitation'\]; there are \['events', "),
    ):
        with pytest.raises(ValueError, match=message):
            adapter.choose(path)
    assert adapter.chosen() is adapter.TrioletAdapter


class Confused:
    """An adapter that declares something unsupported that nobody asked for."""

    unsupported = frozenset({"levitation"})
