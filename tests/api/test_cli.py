"""The `triolet` command: flags to configuration, help, and mistakes as one line and exit status 2."""

import subprocess
import sys
from typing import Any

import attrs
import pytest

from tests.house.test_laws import ROOT
from triolet import __version__
from triolet.api import serve as serving
from triolet.api.cli import main
from triolet.api.config import ServerConfig, parse_size
from triolet.engine.config import EngineConfig
from triolet.engine.core.errors import ConfigurationError, ModelLoadError


def run(*arguments: str) -> int:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    code = caught.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineConfig, ServerConfig]]:
    """The configurations that `triolet serve` would have served; nothing is served."""
    calls: list[tuple[EngineConfig, ServerConfig]] = []

    async def serve(engine: EngineConfig, server: ServerConfig, **_: Any) -> int:
        calls.append((engine, server))
        return 0

    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr("triolet.api.log.configure_logging", lambda level, style: None)
    return calls


FLAGS = """
    --host 0.0.0.0 --port 0 --api-key k1 --api-key k2 --served-model-name a --served-model-name b --dtype float32
    --max-model-len 512 --max-num-seqs 8 --max-num-batched-tokens 64 --block-size 32 --kv-cache-memory 2GiB
    --gpu-memory-utilization 0.5 --no-enable-prefix-caching --long-prefill-token-threshold 16 --max-num-queued-reqs 9
    --attention-backend reference --seed 3 --log-level debug --write-timeout 5 --body-timeout 6 --max-body-size 1M
    --keep-alive-timeout 7 --ping-interval 8 --shutdown-timeout 0
"""


def test_every_field_of_the_configuration_is_a_flag(served: list[tuple[EngineConfig, ServerConfig]]) -> None:
    """vLLM's names, sizes with suffixes, flags that may be repeated."""
    assert run("serve", "some/model", *FLAGS.split()) == 0
    assert served == [
        (
            EngineConfig(
                model="some/model",
                dtype="float32",
                max_model_len=512,
                max_num_seqs=8,
                max_num_batched_tokens=64,
                block_size=32,
                kv_cache_memory=2 * 1024**3,
                gpu_memory_utilization=0.5,
                enable_prefix_caching=False,
                long_prefill_token_threshold=16,
                max_num_queued_reqs=9,
                attention_backend="reference",
                seed=3,
            ),
            ServerConfig(
                host="0.0.0.0",
                port=0,
                api_key=("k1", "k2"),
                served_model_name=("a", "b"),
                log_level="debug",
                write_timeout=5,
                body_timeout=6,
                max_body_size=1024**2,
                keep_alive_timeout=7,
                ping_interval=8,
                shutdown_timeout=0,
            ),
        )
    ]


def test_without_flags_everything_has_its_default(served: list[tuple[EngineConfig, ServerConfig]]) -> None:
    """`triolet serve` alone serves the built-in model; --model is another way to name one."""
    assert run("serve") == 0
    assert run("serve", "--model", "x.gguf", "--enable-prefix-caching") == 0
    assert served == [(EngineConfig(), ServerConfig()), (EngineConfig(model="x.gguf"), ServerConfig())]


def test_the_key_may_come_from_the_environment(
    served: list[tuple[EngineConfig, ServerConfig]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TRIOLET_API_KEY, unless the flag is given; an empty one does not open the server."""
    monkeypatch.setenv("TRIOLET_API_KEY", "from-environment")
    run("serve")
    run("serve", "--api-key", "from-flag")
    assert [server.api_key for _, server in served] == [("from-environment",), ("from-flag",)]
    assert "from-" not in repr(served)
    monkeypatch.setenv("TRIOLET_API_KEY", "")
    assert run("serve") == 2
    message = "TRIOLET_API_KEY is empty: set it to a key, or unset it to let everybody in."
    assert capsys.readouterr().err == f"triolet: {message}\n"


MISTAKES = [
    (["serve", "--port", "99999"], "--port must be from 0 to 65535, not 99999."),
    (["serve", "--port", "x"], 'Invalid value for --port: unable to convert "x" into int.'),
    (["serve", "--kv-cache-memory", "12x"], "--kv-cache-memory takes bytes, or a number with K, M, G or T"),
    (["serve", "--max-body-size=-1"], "--max-body-size takes bytes"),
    (["serve", "--block-size", "0"], "--block-size must be at least 1, not 0."),
    (["serve", "--max-num-batched-tokens", "3"], "--max-num-batched-tokens (3) must be at least --max-num-seqs (256)"),
    (["serve", "--gpu-memory-utilization", "2"], "--gpu-memory-utilization must be above 0 and at most 1, not 2.0."),
    (["serve", "--dtype", "int1"], 'Invalid value "int1" for --dtype.'),
    (["serve", "--log-level", "loud"], 'Invalid value "loud" for --log-level.'),
    (["serve", "--write-timeout", "0"], "--write-timeout must be above 0, not 0.0."),
    (["serve", "--shutdown-timeout=-1"], "--shutdown-timeout must be at least 0, not -1.0."),
    (["serve", "--ping-interval", "nan"], "--ping-interval must be above 0, not nan."),
    (["serve", "--served-model-name", ""], "--served-model-name must not be empty."),
    (["serve", "--no-such-flag"], "Unknown option: --no-such-flag."),
    (["serve", "a", "b"], "Unused Tokens: ['b']."),
    (["serve", "a", "--model", "b"], "Give the model once: as MODEL or as --model."),
    (["sevre"], 'Unknown command "sevre".'),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_that_names_the_flag(
    arguments: list[str],
    message: str,
    served: list[tuple[EngineConfig, ServerConfig]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On stderr, with exit status 2, and nothing is served."""
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"triolet: {message}")
    assert error.count("\n") == 1
    assert not served


@pytest.mark.parametrize("error", [ModelLoadError("x.gguf:\nis damaged"), ConfigurationError("x.gguf: is damaged")])
def test_an_engine_that_refuses_to_start_is_one_line_and_status_2(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the message looks like."""

    async def refuse(*_: Any, **__: Any) -> int:
        raise error

    monkeypatch.setattr(serving, "serve", refuse)
    monkeypatch.setattr("triolet.api.log.configure_logging", lambda level, style: None)
    assert run("serve") == 2
    assert capsys.readouterr().err == "triolet: x.gguf: is damaged\n"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1048576", 2**20),
        ("512M", 2**29),
        ("512MB", 2**29),
        ("2GiB", 2**31),
        ("1.5g", 3 * 2**29),
        ("1T", 2**40),
    ],
)
def test_sizes_are_bytes_or_have_a_suffix(text: str, size: int) -> None:
    """Every suffix counts in powers of 1024."""
    assert parse_size(text, "--x") == size


def test_help_names_every_flag_and_needs_neither_torch_nor_a_server() -> None:
    """`triolet --help` and `triolet serve --help` are quick: nothing heavy is imported for them."""
    code = (
        "import sys\nfrom triolet.api.cli import main\n"
        "for arguments in (['--help'], ['serve', '--help'], ['--version']):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as error: assert error.code == 0\n"
        "print([name for name in ('torch', 'transformers', 'trio', 'quart', 'hypercorn') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"COLUMNS": "200"})
    assert result.stderr == ""
    assert "Serve a model over HTTP" in result.stdout
    for field in (*attrs.fields(EngineConfig), *attrs.fields(ServerConfig)):
        assert "--" + field.name.replace("_", "-") in result.stdout
    assert result.stdout.endswith("[]\n")


def test_the_package_is_the_command_too() -> None:
    """`python -m triolet`, for where the command is not on the path."""
    command = [sys.executable, "-m", "triolet"]
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert said.stdout.strip() == __version__
    refused = subprocess.run([*command, "serve", "--port", "x"], capture_output=True, text=True, cwd=ROOT)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--port" in refused.stderr
