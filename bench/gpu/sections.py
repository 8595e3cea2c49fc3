"""The sections of the GPU bench, one after the other: each is shown when done, and none takes the others with it."""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import torch
import triton

from .correctness import check_kernels
from .serving import through_http, through_transformers, write_checkpoint
from .sizes import DRY, FULL
from .speed import Card, measure_attention, measure_card
from .steps import measure_steps
from .table import Row, show

BUDGET_S = 450
"""No section begins later than this."""
JUDGED = ("kernels", "serving")
"""Sections in which a row that is not ok makes the status 1. The others have goals, which may be missed."""


class Sections:
    """One run."""

    def __init__(self, only: set[str], *, dry: bool) -> None:
        self.dry, self.only = dry, only
        self.sizes = DRY if dry else FULL
        self.device = torch.device("cpu" if dry else "cuda")
        self.failed = False
        self.begun = time.monotonic()

    def run(self, key: str, title: str, measure: Callable[[], list[Row]]) -> None:
        """Measure and show, if it was asked for and there is time."""
        if self.only and key not in self.only:
            return
        if time.monotonic() - self.begun > BUDGET_S:
            show(title, [Row(what="left out", value=f"{BUDGET_S} s are over")])
            return
        started = time.monotonic()
        try:
            rows = measure()
        except Exception as error:
            rows = [Row(what="failed", value=f"{type(error).__name__}: {error}"[:300], ok=False)]
        if not self.dry:
            torch.cuda.empty_cache()
        self.failed |= any(row.what == "failed" or (row.ok is False and key in JUDGED) for row in rows)
        if self.dry and key not in JUDGED:
            rows = [row if row.what == "failed" else attrs.evolve(row, ok=None) for row in rows]
        show(f"{title}  ({time.monotonic() - started:.0f} s)", rows)

    def serve(self) -> list[Row]:
        """The same model behind our server and in transformers."""
        os.environ.pop("TRITON_INTERPRET", None)  # the server has no use for it
        sizes = self.sizes
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            write_checkpoint(path, sizes.served_spec, sizes.dtype, self.device)
            rows = through_http(path, sizes.served_spec, sizes.load, list(sizes.server_flags))
            return rows + through_transformers(path, sizes.served_spec, sizes.load, sizes.dtype, self.device)


def run_sections(only: set[str], *, dry: bool) -> int:
    """The status: 1 where something is wrong or failed."""
    sections = Sections(only, dry=dry)
    sizes, device = sections.sizes, sections.device
    name = "a CPU, dry: the figures mean nothing" if dry else torch.cuda.get_device_name(device)
    print(f"{name}; torch {torch.__version__}, triton {triton.__version__}, Python {sys.version.split()[0]}")
    sections.run(
        "kernels",
        "Kernels against their references",
        lambda: check_kernels(device, sizes.dtype, sizes.checked, sizes.width, sizes.vocab),
    )
    card, rows = measure_card(device, copy_bytes=sizes.copy_bytes, size=sizes.product, times=sizes.times)
    sections.run("card", "The card", lambda: rows)
    sections.run(
        "attention",
        "Decode attention, as a share of the copy bandwidth",
        lambda: measure_attention(device, sizes.dtype, card, sizes.attention, times=sizes.times),
    )
    for quantization in sizes.quantizations(card):
        title = f"Steps of {sizes.steps_name}, {quantization}, contexts of {sizes.context}, as a share of the roofline"
        sections.run("steps", title, partial(_steps, sections, card, quantization))
    sections.run("serving", f"Serving {sizes.served_name}", sections.serve)
    print(f"\n{time.monotonic() - sections.begun:.0f} s in all")
    return int(sections.failed)


def _steps(sections: Sections, card: Card, quantization: str) -> list[Row]:
    sizes = sections.sizes
    return measure_steps(
        sizes.steps_spec,
        sections.device,
        sizes.dtype,
        card,
        quantization=quantization,
        batches=sizes.batches,
        context=sizes.context,
        steps=sizes.steps,
    )
