"""The pictures of a load: how the times of requests spread, and what went through, for each server.

Imports matplotlib, through `plotting`, when one is drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..plotting import draw_distribution, panels, save
from .measure import Outcome, summarize
from .target import Target

TITLES = (
    "Time to the first token",
    "Time per output token",
    "Time between tokens",
    "Whole request",
    "Output tokens per second, by round",
    "Requests under way",
)

_TIMES: tuple[Callable[[Outcome], Sequence[float]], ...] = (
    lambda outcome: (outcome.ttft_s,),
    lambda outcome: () if outcome.tpot_s is None else (outcome.tpot_s,),
    lambda outcome: outcome.itl_s,
    lambda outcome: (outcome.e2e_s,),
)


def plot_load(
    rounds: Mapping[str, Sequence[Sequence[Outcome]]], targets: Sequence[Target], path: Path, heading: str
) -> None:
    """Write the file. Raises ConfigurationError where it cannot be written."""
    figure, axes = panels(TITLES, heading)
    *times, throughput, under_way = axes
    for index, target in enumerate(targets):
        outcomes = rounds[target.name]
        done = [outcome for each in outcomes for outcome in each if outcome.error is None]
        label = f"{target.name}: {target.address.url}"
        for panel, read in zip(times, _TIMES, strict=True):
            draw_distribution(panel, [seconds for outcome in done for seconds in read(outcome)], label)
        places = [number + 1 + 0.4 * index for number in range(len(outcomes))]
        throughput.bar(places, [summarize([each]).output_tokens_per_s for each in outcomes], 0.4, label=label)
        under_way.step(*_num_open(outcomes[0]), where="post", label=label)
    throughput.set_xlabel("round")
    throughput.set_xticks(range(1, max(map(len, rounds.values())) + 1))
    under_way.set_xlabel("s, in the first round")
    for panel in axes:
        panel.legend(fontsize="x-small", loc="lower right")
    save(figure, path)


def _num_open(outcomes: Sequence[Outcome]) -> tuple[list[float], list[int]]:
    """How many requests had begun and not ended, at each moment at which that changed."""
    changes = sorted([(o.start_s, 1) for o in outcomes] + [(o.end_s, -1) for o in outcomes])
    start_s = changes[0][0] if changes else 0.0
    count, counts = 0, []
    for _, change in changes:
        count += change
        counts.append(count)
    return [moment - start_s for moment, _ in changes], counts
