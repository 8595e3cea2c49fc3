"""Turns looks into events: what has changed since the last one, and a snapshot for who comes new.

Pure but for the clock that it is given. It is asked from one task, in the event loop's thread.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from ...engine.stats import EngineStats
from .cells import STATES, blocks_per_cell, cell_text, changed_runs
from .tap import Heard, Tap
from .wire import (
    LiveBlocks,
    LiveBranch,
    LiveEvent,
    LiveFigures,
    LiveLimits,
    LivePrefixes,
    LiveRequest,
    LiveStep,
)

if TYPE_CHECKING:
    from ...engine.engine import Engine
    from ...engine.inside import Look, Outline, Prefixes, RequestSeen

STEPS_SHOWN = 240
"""Steps that a snapshot begins with."""
BRANCHES_MAX = 160
VISITS_MAX = 4096
"""Blocks of the prefix tree that are looked at in a second: some 2 ms."""
PREFIXES_EVERY_S = 1.0
TEXT_MAX = 96


@attrs.frozen(kw_only=True)
class _State:
    """All that a watcher who is up to date knows."""

    limits: LiveLimits
    figures: LiveFigures
    blocks: LiveBlocks
    cells: str
    requests: dict[str, LiveRequest]
    more_requests: int


class Sampler:
    """One engine's. `sampling` is open while `change` and `snapshot` are called."""

    def __init__(self, engine: "Engine", tap: Tap, *, shows_text: bool, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._tap = tap
        self._shows_text = shows_text
        self._clock = clock
        self._state: _State | None = None
        self._steps: deque[LiveStep] = deque(maxlen=STEPS_SHOWN)
        self._prefixes: LivePrefixes | None = None
        self._prefixes_due = 0.0
        self._texts: dict[bytes, str] = {}
        self._heard: Heard | None = None
        self._followed: Prefixes | None = None

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Listen to the engine for as long as the block runs; nothing is kept afterwards."""
        with self._tap.listening() as self._heard, self._engine.inside.prefixes() as self._followed:
            try:
                yield
            finally:
                self._heard = self._followed = self._state = self._prefixes = None
                self._steps.clear()
                self._texts.clear()

    def change(self) -> LiveEvent | None:
        """What is new since the last call; None: nothing. The first call must be answered with a snapshot."""
        if self._heard is None:
            raise AssertionError("nobody watches")
        now = self._clock()
        old, new = self._state, self._read()
        self._state = new
        prefixes = self._new_prefixes(now)
        steps = self._heard.take_steps()
        self._steps += steps
        first_tokens, gaps = self._heard.take_first_tokens(), self._heard.take_gaps()
        fields: dict[str, Any] = {"steps": steps, "first_tokens": first_tokens, "gaps": gaps, "prefixes": prefixes}
        if old is not None:
            fields |= _difference(old, new)
        if not any(value is not None and value != () for value in fields.values()):
            return None
        return LiveEvent(kind="change", at=round(now, 4), **fields)

    def snapshot(self) -> LiveEvent:
        """As of the last `change`."""
        state = self._state
        if state is None:
            raise AssertionError("nothing has been sampled")
        return LiveEvent(
            kind="snapshot",
            at=round(self._clock(), 4),
            shows_text=self._shows_text,
            limits=state.limits,
            figures=state.figures,
            blocks=state.blocks,
            cells=state.cells,
            requests=tuple(state.requests.values()),
            more_requests=state.more_requests,
            steps=tuple(self._steps),
            prefixes=self._prefixes,
        )

    def _read(self) -> _State:
        engine = self._engine
        look = engine.inside.look()
        per_cell = blocks_per_cell(len(look.cells))
        return _State(
            limits=LiveLimits(
                model=engine.model_name,
                device=look.stats.cache.device,
                max_model_len=engine.max_model_len,
                num_blocks=len(look.cells),
                block_size=engine.inside.block_size,
                blocks_per_cell=per_cell,
                max_num_seqs=look.max_num_seqs,
                token_budget=look.token_budget,
            ),
            figures=figures_of(look.stats),
            blocks=LiveBlocks(**attrs.asdict(look.counts)),
            cells=cell_text(look.cells, per_cell),
            requests=_requests_of(look),
            more_requests=look.num_more_requests,
        )

    def _new_prefixes(self, now: float) -> LivePrefixes | None:
        if self._followed is None or (not self._followed.fill() and now < self._prefixes_due):
            return None
        self._prefixes_due = now + PREFIXES_EVERY_S
        outline = self._followed.outline(max_branches=BRANCHES_MAX, max_visits=VISITS_MAX)
        told = self._told(outline)
        if told == self._prefixes:
            return None
        self._prefixes = told
        return told

    def _told(self, outline: "Outline") -> LivePrefixes:
        known, self._texts = self._texts, {}
        branches = []
        for branch in outline.branches:
            text = None
            if self._shows_text:
                text = known.get(branch.content_hash)
                if text is None:
                    text = self._engine.tokenizer.decode(branch.token_ids, skip_special_tokens=False)[:TEXT_MAX]
                self._texts[branch.content_hash] = text
            branches.append(
                LiveBranch(
                    depth=branch.depth,
                    hash=branch.content_hash.hex()[:12],
                    blocks=branch.num_blocks,
                    tokens=branch.num_tokens,
                    owners=branch.refcount,
                    text=text,
                    salted=branch.is_salted,
                    cut=branch.is_cut,
                )
            )
        return LivePrefixes(branches=tuple(branches), blocks=outline.num_blocks, whole=outline.is_whole)


def _difference(old: _State, new: _State) -> dict[str, Any]:
    width = 1 if new.limits.blocks_per_cell == 1 else STATES
    runs = changed_runs(old.cells, new.cells, width)
    changed = tuple(request for key, request in new.requests.items() if old.requests.get(key) != request)
    return {
        "limits": new.limits if new.limits != old.limits else None,
        "figures": new.figures if new.figures != old.figures else None,
        "blocks": new.blocks if new.blocks != old.blocks else None,
        "cells": new.cells if runs is None else None,
        "changed_cells": runs or (),
        "requests": changed,
        "gone": tuple(key for key in old.requests if key not in new.requests),
        "more_requests": new.more_requests if new.more_requests != old.more_requests else None,
    }


def figures_of(stats: EngineStats) -> LiveFigures:
    """The numbers of /metrics, under the page's names."""
    return LiveFigures(
        running=stats.running,
        waiting=stats.waiting,
        queued_tokens=stats.queued_tokens,
        kv_usage=stats.kv_usage,
        free_blocks=stats.num_free_blocks,
        prompt_tokens=stats.prompt_tokens,
        cached_prompt_tokens=stats.cached_prompt_tokens,
        generation_tokens=stats.generation_tokens,
        prefix_queries=stats.prefix_queries,
        prefix_hits=stats.prefix_hits,
        preemptions=stats.preemptions,
        steps=stats.steps,
        wasted_tokens=stats.wasted_tokens,
        runner_restarts=stats.runner_restarts,
    )


def _requests_of(look: "Look") -> dict[str, LiveRequest]:
    return {request.id: _request(request) for request in look.requests}


def _request(seen: "RequestSeen") -> LiveRequest:
    return LiveRequest(
        id=seen.id,
        name=seen.name,
        state=seen.state,
        colour=seen.colour,
        prompt_tokens=seen.num_prompt_tokens,
        cached_tokens=seen.num_cached_tokens,
        computed_tokens=seen.num_computed_tokens,
        output_tokens=seen.num_output_tokens,
        max_tokens=seen.max_tokens,
        n=seen.num_choices,
        blocks=seen.num_blocks,
        preemptions=seen.num_preemptions,
        arrived=round(seen.arrival_time, 4),
        first_token=None if seen.first_token_time is None else round(seen.first_token_time, 4),
    )
