"""`triolet plan`: a table and JSON from a configuration alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from triolet.api.cli import main
from triolet.api.planning import PlanOptions
from triolet.engine.config import EngineConfig

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "vocab_size": 32000,
    "torch_dtype": "float16",
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Llama 2 7B as a folder that holds its configuration and nothing else."""
    folder = tmp_path / "llama-2-7b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    with pytest.raises(SystemExit) as caught:
        main(["plan", *arguments])
    shown = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, shown.out, shown.err


def test_the_worked_example_as_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """80 GB at 0.9 with 1.5 GB of activations: 8 MiB a block, about 7,400 blocks, 118,000 tokens."""
    flags = "--memory 80GiB --gpu-memory-utilization 0.9 --activations 1.5GiB --lengths 4096 --batch-sizes 1 16 --json"
    status, out, _ = plan(capsys, model, *flags.split())
    made: dict[str, Any] = json.loads(out)
    assert status == 0
    assert made["model"] == "llama-2-7b"
    assert (made["bytes_per_block"], made["num_blocks"], made["num_tokens"]) == (8 << 20, 7417, 118_672)
    assert (made["dtype"], made["kv_cache_dtype"], made["largest_max_model_len"]) == ("float16", "float16", 4096)
    assert made["weight_bytes_by_dtype"]["float32"] == 4 * 6_738_415_616
    assert made["sequences"] == [{"num_tokens": 4096, "most_sequences": 28, "prefill_seconds": None}]
    assert [step["step_seconds"] for step in made["steps"]] == [None, None]


def test_a_gpu_by_name_has_a_roofline(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Larger batches give more tokens a second; one that does not fit says so."""
    status, out, _ = plan(capsys, model, "--gpu", "a100-80gb", "--batch-sizes", "1", "32", "500", "--json")
    steps = [step for step in json.loads(out)["steps"] if step["context"] == 512]
    assert status == 0
    assert 100 < steps[0]["tokens_per_s"] < steps[1]["tokens_per_s"] < steps[2]["tokens_per_s"]
    assert [step["fits"] for step in steps] == [True, True, False]


@pytest.mark.parametrize("flags", ["--gpu L40S", "--memory 48GiB --dtype int4"])
def test_the_table_shows_the_numbers(model: str, capsys: pytest.CaptureFixture[str], flags: str) -> None:
    """Memory, blocks, sequences; and the roofline, or what it needs."""
    status, out, _ = plan(capsys, model, *flags.split())
    assert status == 0
    assert "8 MiB" in out
    assert "most at once" in out
    assert ("tokens/s" in out) == ("--gpu" in flags)
    assert ("No roofline" in out) == ("--gpu" not in flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--gpu abacus", "--gpu 'abacus' is not known"),
        ("--memory 8GiB", "and no KV block of"),
        ("--memory lots", "--memory takes bytes"),
        ("--block-size 0", "--block-size must be at least 1."),
        ("--lengths 5 0", "--lengths must be at least 1."),
        ("--gpu-memory-utilization 2", "--gpu-memory-utilization must be above 0 and at most 1, not 2.0."),
    ],
)
def test_a_mistake_is_one_line(model: str, capsys: pytest.CaptureFixture[str], flags: str, message: str) -> None:
    """On stderr, with status 2."""
    status, out, err = plan(capsys, model, *flags.split())
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_what_plans_and_what_serves_take_the_same_share_of_the_memory() -> None:
    """One default for both."""
    assert PlanOptions().gpu_memory_utilization == EngineConfig().gpu_memory_utilization == 0.92
