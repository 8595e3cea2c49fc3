"""`triolet simulate`: a report from a configuration alone, from a drawn or a given trace."""

import json
import sys
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
        ("--arrivals {worse}", "line 1: an arrival needs a time of at least 0, and at least one prompt and one output"),
        ("--costs nowhere.json", "--costs nowhere.json cannot be read: No such file or directory."),
    ],
)
def test_a_mistake_is_one_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    """On stderr, with status 2."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"at": 1}\n')
    worse = tmp_path / "worse.jsonl"
    worse.write_text('{"at": 1, "prompt_tokens": 3, "output_tokens": 0}')
    status, out, err = simulate(capsys, model, "--memory", "80GiB", *flags.format(bad=bad, worse=worse).split())
    assert (status, out) == (2, "")
    assert message in err


def test_the_pictures_are_a_png(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the size of six panels; the report is printed all the same."""
    path = tmp_path / "load.png"
    flags = f"--gpu L4 --requests 20 --rate 10 --prompt-tokens 100 --output-tokens 20 --plot {path} --json"
    status, out, _ = simulate(capsys, model, *flags.split())
    assert (status, json.loads(out)["finished"]) == (0, 20)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(content[start : start + 4]) for start in (16, 20))
    assert (width, height) == (1440, 1152)


def test_a_picture_that_cannot_be_made_is_refused_before_the_run(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of no known kind, a folder that is not there, and no matplotlib: each says what to do."""
    for path, message in (
        (tmp_path / "load.txt", f"--plot takes a file named .png, .svg or .pdf, not {tmp_path}/load.txt."),
        (tmp_path / "no" / "load.png", f"--plot {tmp_path}/no/load.png: there is no folder {tmp_path}/no."),
    ):
        status, out, err = simulate(capsys, model, "--memory", "80GiB", "--plot", str(path))
        assert (status, out, err) == (2, "", f"triolet: {message}\n")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, _, err = simulate(capsys, model, "--memory", "80GiB", "--plot", str(tmp_path / "load.png"))
    expected = "triolet: --plot needs matplotlib, which is not installed: pip install 'triolet[plot]'.\n"
    assert (status, err) == (2, expected)


def test_measured_costs_take_the_roofline_s_place(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two steps of one token each after a prompt of ten: 30 + 2 x 12 ms, whatever the machine."""
    costs, trace = tmp_path / "costs.json", tmp_path / "trace.jsonl"
    costs.write_text('{"knots": [0, 10], "seconds": [0.01, 0.03], "per_sampled_s": 0.0, "per_pair_s": 0.0}')
    trace.write_text('{"at": 0, "prompt_tokens": 10, "output_tokens": 3}\n')
    flags = ["--memory", "80GiB", "--arrivals", str(trace), "--costs", str(costs), "--json"]
    status, out, _ = simulate(capsys, model, *flags)
    assert status == 0
    assert json.loads(out)["seconds"] == pytest.approx(0.054)
    for content, message in (
        ("{}", "Object missing required field `knots`"),
        ('{"knots": [1, 1], "seconds": [0, 0], "per_sampled_s": 0.0, "per_pair_s": 0.0}', "rising knots"),
    ):
        costs.write_text(content)
        status, _, err = simulate(capsys, model, *flags)
        assert status == 2
        assert f"--costs {costs} is not what bench.agreement writes: " in err
        assert message in err


@pytest.mark.parametrize("flags", ["--lengths 512", "--batch-sizes 1"])
def test_what_only_a_plan_counts_is_no_flag_here(model: str, flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that changed nothing would be taken for one that does."""
    status, _, error = simulate(capsys, model, *flags.split())
    assert status == 2
    assert flags.split()[0] in error
