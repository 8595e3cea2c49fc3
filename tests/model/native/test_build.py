"""Compiling the kernels: once for all processes, named by all that it depends on, and a sentence where it cannot be."""

import os
import stat
import sys
from pathlib import Path

import pytest

from triolet.model.native import build
from triolet.model.native.build import NativeUnavailable, build_library, find_compiler
from triolet.model.native.library import Library

FAKE = """#!{python}
import pathlib, sys
folder = pathlib.Path({folder!r})
if "--version" in sys.argv:
    print((folder / "version").read_text())
    sys.exit()
if (folder / "refuse").exists() and any(flag in sys.argv for flag in (folder / "refuse").read_text().split()):
    sys.exit("error: it does not like " + sys.argv[1])
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text(" ".join(sys.argv[1:]))
if "-shared" in sys.argv:
    with (folder / "links").open("a") as links:
        links.write("x")
"""


class FakeCompiler:
    """Answers its version, writes its arguments where the output goes, counts what it links."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "compiler"
        self.path.write_text(FAKE.format(python=sys.executable, folder=str(folder)))
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)
        (folder / "version").write_text("1")

    def refuse(self, *flags: str) -> None:
        (self.folder / "refuse").write_text(" ".join(flags))

    @property
    def builds(self) -> int:
        links = self.folder / "links"
        return len(links.read_text()) if links.exists() else 0


@pytest.fixture
def compiler(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    """The compiler that CXX names, over an empty cache."""
    folder = tmp_path / "compiler"
    folder.mkdir()
    fake = FakeCompiler(folder)
    monkeypatch.setenv("CXX", str(fake.path))
    return fake


def test_a_second_build_is_a_hit(compiler: FakeCompiler, empty_cache: Path) -> None:
    """The same file, compiled once, in the cache folder; progress is told of the first alone."""
    seen: list[str] = []
    paths = {build_library(progress=lambda what, done, total: seen.append(what)) for _ in range(3)}
    assert (len(paths), compiler.builds, seen) == (1, 1, ["Compiling kernels (once)"])
    assert paths.pop().parent == empty_cache / "native"
    assert not [path for path in (empty_cache / "native").iterdir() if path.is_dir()]


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no checksum"])
def test_a_damaged_file_is_built_again(compiler: FakeCompiler, damage: str) -> None:
    """It is never loaded: a library that is cut short would end the process."""
    path = build_library()
    whole = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "changed":
            path.write_bytes(whole[:-1] + b"?")
        case "gone":
            path.unlink()
        case "no checksum":
            path.with_suffix(".sha256").unlink()
    assert build_library() == path
    assert compiler.builds == 2


def test_another_compiler_flag_or_machine_is_another_file(
    compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name hashes the compiler's version, the flags and what the CPU can do."""
    paths = [build_library(), build_library(extra_flags=["-O1"])]
    (compiler.folder / "version").write_text("2")
    paths.append(build_library())
    monkeypatch.setattr(build, "_cpu_features", lambda: "another machine's")
    paths.append(build_library())
    assert len(set(paths)) == compiler.builds == 4


def test_a_compiler_without_march_is_asked_otherwise(compiler: FakeCompiler) -> None:
    """-march=native, else -mcpu=native, else nothing."""
    compiler.refuse("-march=native")
    assert "-mcpu=native" in build_library().read_text()


def test_a_compiler_that_fails_is_quoted(compiler: FakeCompiler, empty_cache: Path) -> None:
    """And leaves nothing behind that would be taken for a library."""
    compiler.refuse("-O3")
    with pytest.raises(NativeUnavailable, match="cannot compile the kernels: error: it does not like"):
        build_library()
    assert not list((empty_cache / "native").glob("*.so"))


def test_no_compiler_is_a_sentence_that_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It says what was looked for and what to install."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeUnavailable, match=r"no C\+\+ compiler was found .*apt install g\+\+.* or set CXX"):
        find_compiler()


@pytest.mark.parametrize("named", ["/nowhere/c++", "false"])
def test_a_named_compiler_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    """CXX is taken at its word: no other is tried."""
    monkeypatch.setenv("CXX", named)
    with pytest.raises(NativeUnavailable, match=rf"the compiler that CXX names \({named.replace('+', '.')}\) does not"):
        find_compiler()


def test_a_cache_that_cannot_be_written_is_a_sentence(
    compiler: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is named."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path / "file"))
    with pytest.raises(NativeUnavailable, match="the kernels cannot be kept in"):
        build_library()


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    """Whatever lies there, the message says that it cannot be loaded."""
    path = tmp_path / "kernels.so"
    path.write_text("no library")
    with pytest.raises(NativeUnavailable, match="the compiled kernels cannot be loaded"):
        Library(path)


def test_the_sources_are_beside_the_code() -> None:
    """They are found as package data, wherever the package is installed."""
    names = {path.name for path in build.SOURCES.iterdir()}
    assert {"api.cpp", "attention.cpp", "gemm.cpp", "tape.h"} <= names
    assert os.access(build.SOURCES / "api.cpp", os.R_OK)
