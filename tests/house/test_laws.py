"""The laws of the house: who may import whom, how long a file may be, what the package shows.

They are read off the source, so a breach is found before anything runs.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests", "property_tests", "browser_tests")
ROOMS = ("kvcache", "engine", "model", "api")
STDLIB = sys.stdlib_module_names

MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 70


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path: Path) -> Iterator[str]:
    """The modules a file imports, relative ones resolved to `triolet.…`, wherever in the file they stand."""
    package = ("triolet", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = f"{base}.{node.module}" if node.level and node.module else (node.module or base)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def within(module: str, *allowed: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in allowed)


@pytest.mark.parametrize("path", sources("kvcache"), ids=str)
def test_the_cache_imports_the_standard_library_and_attrs_alone(path: Path) -> None:
    """kvcache imports none of our other rooms and no library but attrs."""
    for module in imports(path):
        assert module.split(".")[0] in STDLIB or within(module, "attrs", "triolet.kvcache"), module


@pytest.mark.parametrize("path", sources("engine/core"), ids=str)
def test_the_core_imports_neither_trio_nor_torch(path: Path) -> None:
    """engine/core imports itself, kvcache, attrs and the standard library."""
    for module in imports(path):
        assert module.split(".")[0] in STDLIB or within(module, "attrs", "triolet.engine.core", "triolet.kvcache"), (
            module
        )


@pytest.mark.parametrize("path", sources("model"), ids=str)
def test_the_model_knows_the_messages_and_not_the_scheduler(path: Path) -> None:
    """model imports of the engine only the message types, and never trio."""
    messages = tuple(
        f"triolet.engine.core.{name}"
        for name in ("plan", "params", "errors", "ids", "logprobs", "grammar", "pooling", "thinking")
    )
    for module in imports(path):
        assert not within(module, "trio", "triolet.api"), module
        if within(module, "triolet.engine") and module != "triolet.engine.core":
            assert within(module, *messages), module


@pytest.mark.parametrize("path", sources("engine"), ids=str)
def test_few_files_touch_threads_and_only_build_wires_a_model(path: Path) -> None:
    """In engine, `threading` and `queue` are the device file's and the nice thread's; torch and the model room are
    for build.py, loading.py and shape.py."""
    for module in imports(path):
        if within(module, "threading", "queue", "concurrent", "multiprocessing"):
            assert path.name in ("device.py", "nice_thread.py"), module
        if within(module, "torch", "triolet.model", "transformers"):
            assert path.name in ("build.py", "loading.py", "shape.py"), module
        assert not within(module, "triolet.api"), module


@pytest.mark.parametrize("path", sources("api"), ids=str)
def test_the_api_reaches_the_engine_by_its_front_door(path: Path) -> None:
    """api imports neither torch, nor the model, nor the cache, nor the scheduler."""
    for module in imports(path):
        assert not within(
            module,
            "torch",
            "transformers",
            "triolet.model",
            "triolet.kvcache",
            "triolet.engine.core.scheduler",
            "triolet.engine.core.policy",
        ), module


@pytest.mark.parametrize("path", sources(*ROOMS), ids=str)
def test_a_room_is_never_imported_by_its_bare_name(path: Path) -> None:
    """Inside the package imports are relative: a bare `import engine` would load a second copy."""
    for module in imports(path):
        assert module.split(".")[0] not in ROOMS, module


@pytest.mark.parametrize("path", sources(*ROOMS, *TESTS, "bench", "docs", "labs"), ids=str)
def test_a_file_is_one_noun_and_a_function_fits_a_screen(path: Path) -> None:
    """No file is over 400 lines, no function over 70."""
    text = path.read_text()
    assert text.count("\n") <= MOST_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MOST_FUNCTION_LINES, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", sources(*ROOMS), ids=str)
def test_every_file_opens_by_saying_what_it_is_for(path: Path) -> None:
    """Every module of the package has a docstring."""
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", sources(*ROOMS), ids=str)
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    """No pickle, marshal or dill is imported, and neither eval nor exec is called."""
    for module in imports(path):
        assert module.split(".")[0] not in {"pickle", "marshal", "dill", "cloudpickle", "shelve"}, module
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec"}


@pytest.mark.parametrize("path", sources(*TESTS), ids=str)
def test_each_test_says_in_a_sentence_what_it_shows(path: Path) -> None:
    """A test file reads as a specification: each test function has a docstring."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            assert ast.get_docstring(node), f"{path.name}: {node.name}"


@pytest.mark.parametrize("path", sources(*TESTS), ids=str)
def test_no_test_waits_for_a_clock(path: Path) -> None:
    """Tests wait for events: neither time.sleep nor a reading of the clock stands in one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = f"{getattr(node.func.value, 'id', '?')}.{node.func.attr}"
            assert called not in {"time.sleep", "time.monotonic", "time.perf_counter", "time.time"}, called


def test_the_package_shows_its_public_names_and_imports_no_torch_to_do_so() -> None:
    """`import triolet` is light: torch, trio and the server come with what needs them."""
    code = (
        "import sys, triolet; from triolet import SamplingParams, TrioletError; "
        "print(sorted(triolet.__all__), [m for m in ('torch', 'trio', 'quart', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    names = ["Engine", "EngineConfig", "LLM", "SamplingParams", "TrioletError", "__version__", "open_engine"]
    assert out.strip() == f"{sorted(names)} []"


def test_the_map_names_every_room() -> None:
    """ARCHITECTURE.md has each folder of the package, and each beside it that holds Python."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    beside = {path.parent for path in ROOT.glob("*/*.py")} | {ROOT / "tests"}
    rooms = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    folders = [str(path.relative_to(ROOT)) for path in sorted(rooms | beside)]
    assert [folder for folder in folders if f"`{folder}/`" not in page] == []
