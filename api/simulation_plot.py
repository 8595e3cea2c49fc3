"""The pictures of a simulation: throughput, queues and memory over its time, and how the times of requests spread."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ..engine.simulation import Moment, Outcome
from .plotting import draw_distribution, panels, save

NUM_BINS = 120
TITLES = (
    "Throughput",
    "Requests",
    "KV cache in use",
    "Tokens of a step",
    "Time to the first token",
    "Time per output token",
)


def plot_outcome(outcome: Outcome, path: Path, heading: str) -> None:
    """Write the file. Raises ConfigurationError where matplotlib is missing, or the file cannot be written."""
    figure, axes = panels(TITLES, heading)
    throughput, requests, memory, steps, first, per_token = axes
    timeline = outcome.timeline
    at = [moment.at for moment in timeline]
    width = max(outcome.seconds, 1e-9) / NUM_BINS
    edges = [index * width for index in range(NUM_BINS)]
    for label, read in (("generated", _sampled), ("computed", _computed)):
        throughput.step(edges, _rates(timeline, width, read), where="post", label=label)
    throughput.set_ylabel("tokens/s")
    requests.step(at, [moment.running for moment in timeline], where="post", label="running")
    requests.step(at, [moment.waiting for moment in timeline], where="post", label="waiting")
    memory.step(at, [100 * moment.kv_usage for moment in timeline], where="post")
    memory.set_ylabel("%")
    memory.set_ylim(0, 105)
    steps.plot(at, [moment.num_tokens for moment in timeline], ".", markersize=2)
    for panel in (throughput, requests, memory, steps):
        panel.set_xlabel("s")
    for panel in (throughput, requests):
        panel.legend(fontsize="small")
    draw_distribution(first, outcome.first_token_s)
    draw_distribution(per_token, outcome.per_token_s)
    save(figure, path)


def _sampled(moment: Moment) -> int:
    return moment.num_sampled


def _computed(moment: Moment) -> int:
    return moment.num_tokens


def _rates(timeline: Sequence[Moment], width: float, read: Callable[[Moment], int]) -> list[float]:
    """Tokens a second in each of NUM_BINS equal parts of the time."""
    counts = [0] * NUM_BINS
    for moment in timeline:
        counts[min(int(moment.at / width), NUM_BINS - 1)] += read(moment)
    return [count / width for count in counts]
