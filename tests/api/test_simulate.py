"""`triolet simulate`: a report from a configuration alone, from a drawn or a given trace."""

import json
from pathlib import Path
from typing import Any

import pytest

from triolet.api.cli import main

from .test_plan import CONFIG


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder with a configuration and nothing else."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    with pytest.raises(SystemExit) as caught:
        main(["simulate", *arguments])
    shown = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, shown.out, shown.err


def test_a_faster_machine_is_faster(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same load; the report has percentiles and totals."""
    reports: list[dict[str, Any]] = []
    for gpu in ("A100-80GB", "H200"):
        flags = f"--gpu {gpu} --requests 20 --rate 10 --prompt-tokens 100 --output-tokens 20 --json"
        status, out, _ = simulate(capsys, model, *flags.split())
        assert status == 0
        reports.append(json.loads(out))
    slow, fast = (report["time_per_output_token_seconds"]["p50"] for report in reports)
    assert 0 < fast < slow
    assert [report["finished"] for report in reports] == [20, 20]
    assert reports[0]["generated_tokens"] == reports[1]["generated_tokens"]


def test_a_given_trace_is_played(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three steps of 10 ms for one request of three tokens, on a machine without a roofline."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 0.5, "prompt_tokens": 10, "output_tokens": 3}\n\n')
    flags = ["--memory", "80GiB", "--arrivals", str(trace), "--step-ms", "10"]
    status, out, _ = simulate(capsys, model, *flags, "--json")
    report = json.loads(out)
    assert (status, report["steps"], report["generated_tokens"]) == (0, 3, 3)
    assert report["time_to_first_token_seconds"]["p99"] == pytest.approx(0.01)
    assert report["e2e_seconds"]["mean"] == pytest.approx(0.03)
    status, out, _ = simulate(capsys, model, *flags)
    assert status == 0
    assert "time to first token" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--rate 0", "--rate must be above 0."),
        ("--cancel-share -1", "--cancel-share must be at least 0."),
        ("--step-ms 0", "A step must take some time: --step-ms or --token-us must be above 0."),
        ("--max-num-batched-tokens 4", "--max-num-batched-tokens must be at least --max-num-seqs."),
        ("--arrivals nowhere.jsonl", "--arrivals nowhere.jsonl cannot be read:"),
        ("--arrivals {bad}", "line 1: Object missing required field `prompt_tokens`"),
    ],
)
def test_a_mistake_is_one_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    """On stderr, with status 2."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"at": 1}\n')
    status, out, err = simulate(capsys, model, "--memory", "80GiB", *flags.format(bad=bad).split())
    assert (status, out) == (2, "")
    assert message in err
