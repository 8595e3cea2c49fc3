"""Where a model comes from: folders, files, hub names, and what is said when there is none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from triolet.engine.core.errors import ModelLoadError
from triolet.model.cache import cache_folder
from triolet.model.source import resolve_source


def folder_with(path: Path, *names: str) -> Path:
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_bytes(b"")
    return path


def test_a_folder_with_a_config_is_a_model_named_after_it(tmp_path: Path) -> None:
    """The folder's own name is what clients call it."""
    source = resolve_source(str(folder_with(tmp_path / "little-llama", "config.json")))
    assert (source.kind, source.path, source.name) == ("folder", tmp_path / "little-llama", "little-llama")


def test_a_gguf_file_is_a_model_named_after_it(tmp_path: Path) -> None:
    """The suffix is not part of the name."""
    folder_with(tmp_path / "m", "Little-Q4.gguf")
    source = resolve_source(str(tmp_path / "m" / "Little-Q4.gguf"))
    assert (source.kind, source.name) == ("gguf", "Little-Q4")


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    """People download a GGUF into a folder of its own."""
    source = resolve_source(str(folder_with(tmp_path / "m", "a.gguf", "README.md")))
    assert (source.kind, source.path.name, source.name) == ("gguf", "a.gguf", "m")


def test_a_home_path_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home folder also when no shell has replaced it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder_with(tmp_path / "m", "config.json")
    assert resolve_source("~/m").path == tmp_path / "m"


@pytest.mark.parametrize(
    ("files", "name", "says"),
    [
        ((), "", "m holds neither a config.json nor a .gguf file: it is not a model folder."),
        (("a.gguf", "b.gguf"), "", "m holds 2 GGUF files: name one, such as "),
        (("model.safetensors",), "model.safetensors", "is a file, but not a .gguf one; name the folder"),
        ((), "absent.gguf", "absent.gguf does not exist: a model is a local folder (safetensors), a .gguf file or"),
        ((), "absent", "does not exist"),
    ],
)
def test_a_path_that_is_no_model_is_refused_by_name(
    tmp_path: Path, files: tuple[str, ...], name: str, says: str
) -> None:
    """The message names the path and what would have been taken."""
    path = folder_with(tmp_path / "m", *files) / name
    with pytest.raises(ModelLoadError) as refused:
        resolve_source(str(path))
    assert says in refused.value.message
    assert str(path).rstrip("/") in refused.value.message


def test_a_bare_word_is_not_taken_for_a_hub_name() -> None:
    """A mistyped flag should not reach for the network."""
    with pytest.raises(ModelLoadError, match=r"smollm does not exist: .* hub name \(owner/name\)"):
        resolve_source("smollm")


def fake_hub(monkeypatch: pytest.MonkeyPatch, download: Callable[..., Any]) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)


def test_a_hub_name_is_downloaded_and_its_bytes_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data files alone are asked for, and only the bars that count bytes reach the callback."""
    folder = folder_with(tmp_path / "snapshot", "config.json")
    asked: dict[str, Any] = {}

    def download(name: str, *, tqdm_class: Any, **options: Any) -> str:
        asked.update(options, name=name)
        for unit, kind in (("B", ".transfer"), ("B", ""), ("it", "")):
            with tqdm_class(total=30, unit=unit, name="huggingface_hub.snapshot_download" + kind) as bar:
                bar.update(10)
                bar.update(20)
        return str(folder)

    fake_hub(monkeypatch, download)
    heard: list[tuple[str, int, int | None]] = []
    source = resolve_source("owner/little-1.5", lambda *report: heard.append(report))
    assert (source.kind, source.path, source.name) == ("folder", folder, "owner/little-1.5")
    assert heard == [("Fetching owner/little-1.5", 10, 30), ("Fetching owner/little-1.5", 30, 30)]
    wanted = asked["allow_patterns"]
    assert "*.safetensors" in wanted
    assert not [pattern for pattern in wanted if pattern.endswith((".py", ".bin", ".pt"))]


def http(error: type[HfHubHTTPError]) -> HfHubHTTPError:
    import httpx

    return error("said\nat length", response=httpx.Response(404, request=httpx.Request("GET", "https://hub.invalid")))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (http(GatedRepoError), "access to it must be asked for on its page first, and HF_TOKEN set"),
        (http(RepositoryNotFoundError), "there is no such model there (a private one needs HF_TOKEN)"),
        (LocalEntryNotFoundError("x"), "the hub cannot be reached, and the model is not in its local cache"),
        (http(HfHubHTTPError), "HfHubHTTPError: said at length"),
        (OSError("No space left on device"), "OSError: No space left on device"),
    ],
)
def test_a_hub_failure_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, says: str) -> None:
    """It names the model and the reason, and how to use a local one instead."""

    def download(name: str, **_: Any) -> str:
        raise error

    fake_hub(monkeypatch, download)
    with pytest.raises(ModelLoadError) as refused:
        resolve_source("owner/name")
    assert refused.value.message.startswith(f"The hub model owner/name cannot be fetched: {says}.")
    assert "A local model is named by its folder or its .gguf file." in refused.value.message
    assert "\n" not in refused.value.message


def test_a_hub_name_without_network_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real client, told that it is offline."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelLoadError, match="the hub cannot be reached, and the model is not in its local cache"):
        resolve_source("nobody/nothing")


def test_a_name_the_hub_cannot_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own rules for names, in its own words, before any request."""
    with pytest.raises(ModelLoadError, match=r"owner/a--b cannot be fetched: Cannot have -- or \.\. in repo_id"):
        resolve_source("owner/a--b")


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TRIOLET_CACHE before XDG_CACHE_HOME before the home folder; a relative XDG path is ignored."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TRIOLET_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "triolet"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "triolet"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "triolet"
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
