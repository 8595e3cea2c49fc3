"""A model's shape without its weights: from a folder's configuration, a GGUF file's header, or the hub's."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from tests.model.tiny import make_model, write_folder, write_gguf
from triolet.api.cli import main
from triolet.engine.shape import read_shape

ONE_PLAN = """
import sys
from triolet.api.cli import main
try:
    main(["plan", sys.argv[1], "--memory", "4GiB", "--json"])
except SystemExit as end:
    assert not end.code
assert "torch" not in sys.modules
"""


def test_a_gguf_file_s_header_is_enough(tmp_path: Path) -> None:
    """The plan has the header's numbers, and is made in a process that never imports torch."""
    model = make_model("llama")
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model)
    name, spec = read_shape(str(path))
    config = model.config
    assert (name, spec.num_layers, spec.hidden_size) == ("tiny", config.num_hidden_layers, config.hidden_size)
    command = [sys.executable, "-c", ONE_PLAN, str(path)]
    made: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (made["model"], made["max_model_len"]) == ("tiny", config.max_position_embeddings)
    assert made["num_weights"] == sum(weight.numel() for weight in model.parameters())


def test_of_a_hub_model_the_configuration_alone_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No weight is asked for."""
    write_folder(tmp_path, make_model("qwen2"), tokenizer=False)
    (tmp_path / "model.safetensors").unlink()
    asked: list[list[str]] = []

    def download(name: str, *, allow_patterns: list[str], **_: Any) -> str:
        assert name == "owner/little"
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(SystemExit) as caught:
        main(["plan", "owner/little", "--memory", "4GiB", "--json"])
    assert not caught.value.code
    assert json.loads(capsys.readouterr().out)["model"] == "owner/little"
    assert asked == [["config.json", "generation_config.json"]]
