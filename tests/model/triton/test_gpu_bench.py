"""bench/gpu/run.py runs to its end on a machine without a GPU, and says so where it cannot measure."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "bench.gpu.run", *flags], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_a_dry_run_goes_through_every_section() -> None:
    """Kernels in the interpreter, the runner, a server on a socket and its clients: nothing is wrong or failed."""
    done = run("--dry")
    assert done.returncode == 0, done.stdout + done.stderr
    for section in ("Kernels", "The card", "Decode attention", "Steps of a tiny model, fp8", "Serving a tiny model"):
        assert section in done.stdout
    assert "HTTP, 4 streams" in done.stdout


def test_without_a_gpu_it_says_so() -> None:
    """Status 2, and what can be run."""
    done = run()
    assert done.returncode == 2
    assert done.stderr == "bench.gpu.run: no CUDA GPU is visible to torch; --dry runs the script on the CPU.\n"
