"""`triolet serve --config FILE`: flags from YAML, behind those of the command line."""

from pathlib import Path

import pytest

from triolet.api.config import ServerConfig
from triolet.engine.config import EngineConfig

from .test_cli import run, served  # noqa: F401 - a fixture

Served = list[tuple[EngineConfig, ServerConfig]]

FLAGS = """
model: some/model
port: 0
served-model-name: [a, b]
max_body_size: 1M
enable-prefix-caching: false
kv-cache-memory: 2GiB
default-timeout: 2.5
allowed-origins: ["*"]
log-level:
"""


def test_a_file_sets_flags_by_their_names(served: Served, tmp_path: Path) -> None:  # noqa: F811
    """Lists, sizes, numbers, booleans and nulls; dashes and underscores alike."""
    file = tmp_path / "flags.yaml"
    file.write_text(FLAGS)
    assert run("serve", "--config", str(file)) == 0
    engine, server = served[0]
    assert (engine.model, engine.enable_prefix_caching, engine.kv_cache_memory) == ("some/model", False, 2 * 1024**3)
    assert (server.port, server.served_model_name, server.max_body_size) == (0, ("a", "b"), 1024**2)
    assert (server.default_timeout, server.allowed_origins, server.log_level) == (2.5, ("*",), "info")


def test_the_command_line_goes_before_the_file(served: Served, tmp_path: Path) -> None:  # noqa: F811
    """Flag by flag, and the model too; what neither has is the default."""
    file = tmp_path / "flags.yaml"
    file.write_text(FLAGS)
    assert run("serve", "other/model", "--port", "9", "--config", str(file), "--served-model-name", "c") == 0
    engine, server = served[0]
    assert (engine.model, server.port, server.served_model_name) == ("other/model", 9, ("c",))
    assert (server.max_body_size, server.host) == (1024**2, "127.0.0.1")


BROKEN = [
    ("prot: 8000", "prot"),
    ("port: many", "port"),
    ("- port", "must be a mapping from the names of flags to their values"),
    ("port: [", "is not YAML"),
    ("port: !!python/object/apply:os.system ['true']", "is not YAML"),
    ("config: other.yaml", "cannot name another file"),
    ("ping-interval: 0", "--ping-interval must be above 0, not 0"),
]


@pytest.mark.parametrize(("text", "said"), BROKEN)
def test_a_mistake_in_the_file_is_one_line(
    text: str,
    said: str,
    served: Served,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 2, and what is wrong; nothing is served."""
    file = tmp_path / "flags.yaml"
    file.write_text(text)
    assert run("serve", "--config", str(file)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not served


def test_a_file_that_is_not_there_is_named(served: Served, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    """With the reason."""
    assert run("serve", "--config", "/nowhere/flags.yaml") == 2
    assert "--config /nowhere/flags.yaml: No such file or directory." in capsys.readouterr().err
    assert not served
