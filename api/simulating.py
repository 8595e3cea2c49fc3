"""`triolet simulate`: a load on a machine that need not be there, by the real scheduler and allocator."""

from pathlib import Path
from typing import Annotated, Any

import attrs
import msgspec
from cyclopts import Parameter

from ..engine.config import EngineConfig
from ..engine.core.errors import ConfigurationError
from ..engine.cost import StepCost, StepShape
from ..engine.estimate import Estimate
from ..engine.measured import MeasuredCost
from ..engine.simulation import Arrival, Load, Outcome, draw_trace, make_simulation
from .plotting import check_plot

PERCENTILES = (50, 90, 99)
_TOKEN_LIMITS = ("long_prefill_token_threshold", "prefill_tokens_beside_decodes")


@attrs.frozen(kw_only=True)
class SimulateOptions:
    """The load, and how fast a step is."""

    requests: int = 200
    """Requests of a drawn trace."""
    rate: float = 4.0
    """Requests a second, on average; they come at random."""
    prompt_tokens: int = 512
    """Mean length of a prompt, without its shared beginning."""
    output_tokens: int = 128
    """Mean length of an answer."""
    prefix_tokens: int = 0
    """Tokens that prompts begin alike with."""
    prefixes: int = 1
    """How many such beginnings there are."""
    cancel_share: float = 0.0
    """The share of requests that their clients leave, from 0 to 1 …"""
    cancel_within: float = 1.0
    """… at most so many seconds after they sent them."""
    arrivals: Annotated[Path | None, Parameter(show_default=False)] = None
    """A file with the trace instead: a JSON object a line, with at, prompt_tokens, output_tokens, and where wanted
    prefix, prefix_tokens, cancel_after."""
    seed: int = 0
    """Of what is drawn."""
    max_num_seqs: int = EngineConfig().max_num_seqs
    """Most sequences in a step."""
    max_num_batched_tokens: int = EngineConfig().max_num_batched_tokens
    """Most tokens in a step."""
    long_prefill_token_threshold: int = 0
    """Most prompt tokens of one sequence in a step; 0 sets no limit below the step's."""
    prefill_tokens_beside_decodes: int = 0
    """Most prompt tokens in a step in which others decode; 0 sets no limit."""
    costs: Annotated[Path | None, Parameter(show_default=False)] = None
    """A file with what steps take, measured by `python -m bench.agreement --costs FILE`; in place of the roofline."""
    efficiency: float = 0.6
    """The share of the roofline that steps reach."""
    step_ms: float = 1.0
    """Milliseconds of a step whatever is in it, measured; added to the roofline."""
    token_us: float = 0.0
    """Microseconds for each token of a step, measured; added to the roofline."""
    plot: Annotated[Path | None, Parameter(show_default=False)] = None
    """A file (.png, .svg, .pdf) for plots of throughput, queues, memory and times; needs matplotlib."""

    def __attrs_post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigurationError("--max-num-batched-tokens must be at least --max-num-seqs.")
        positive = ("requests", "rate", "prompt_tokens", "output_tokens", "prefixes", "efficiency", "cancel_within")
        for name in (*positive, "max_num_seqs"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"--{name.replace('_', '-')} must be above 0.")
        for name in ("prefix_tokens", "cancel_share", "step_ms", "token_us", *_TOKEN_LIMITS):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"--{name.replace('_', '-')} must be at least 0.")
        if self.step_ms + self.token_us <= 0:
            raise ConfigurationError("A step must take some time: --step-ms or --token-us must be above 0.")


def trace_of(options: SimulateOptions) -> list[Arrival]:
    """The file's, or a drawn one. Raises ConfigurationError naming the line."""
    if options.arrivals is None:
        load = Load(
            num_requests=options.requests,
            requests_per_s=options.rate,
            prompt_tokens=options.prompt_tokens,
            output_tokens=options.output_tokens,
            prefix_tokens=options.prefix_tokens,
            num_prefixes=options.prefixes,
            cancel_share=options.cancel_share,
            cancel_within_s=options.cancel_within,
        )
        return draw_trace(load, options.seed)
    found = []
    try:
        lines = options.arrivals.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--arrivals {options.arrivals} cannot be read: {error}.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=Arrival))
        except (msgspec.MsgspecError, ValueError) as error:
            raise ConfigurationError(f"--arrivals {options.arrivals}, line {number}: {error}.") from error
    return found


def step_cost(found: Estimate, options: SimulateOptions) -> StepCost:
    """The measured cost; else the roofline at the efficiency that is reached, and what was measured on top. Raises
    ConfigurationError."""
    if options.costs is not None:
        return read_costs(options.costs)

    def cost(shape: StepShape) -> float:
        bound = found.step_seconds(num_tokens=shape.num_tokens, num_context=shape.num_context) or 0.0
        return bound / options.efficiency + options.step_ms / 1e3 + options.token_us * shape.num_tokens / 1e6

    return cost


def read_costs(path: Path) -> MeasuredCost:
    """Raises ConfigurationError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=MeasuredCost)
    except OSError as error:
        raise ConfigurationError(f"--costs {path} cannot be read: {error.strerror}.") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigurationError(f"--costs {path} is not what bench.agreement writes: {error}.") from error


def simulate_load(found: Estimate, options: SimulateOptions, *, model_len: int) -> Outcome:
    """One run. Raises ConfigurationError."""
    check_plot(options.plot)
    simulation = make_simulation(
        found,
        step_cost(found, options),
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        prefill_tokens_beside_decodes=options.prefill_tokens_beside_decodes,
        max_model_len=found.largest_model_len(model_len),
    )
    return simulation.run(trace_of(options), options.seed)


def report_of(outcome: Outcome) -> dict[str, Any]:
    """What is shown, under the names of the JSON. Times in seconds."""
    return {
        "seconds": outcome.seconds,
        "finished": outcome.num_finished,
        "cancelled": outcome.num_cancelled,
        "time_to_first_token_seconds": _percentiles(outcome.first_token_s),
        "time_per_output_token_seconds": _percentiles(outcome.per_token_s),
        "e2e_seconds": _percentiles(outcome.e2e_s),
        "generated_tokens": outcome.generated_tokens,
        "tokens_per_s": outcome.tokens_per_s,
        "prompt_tokens": outcome.prompt_tokens,
        "prefix_cache_hit_rate": outcome.hit_rate,
        "wasted_tokens": outcome.wasted_tokens,
        "preemptions": outcome.preemptions,
        "steps": outcome.steps,
        "most_running": outcome.most_running,
        "most_waiting": outcome.most_waiting,
        "most_kv_usage": outcome.most_kv_usage,
    }


def _percentiles(values: tuple[float, ...]) -> dict[str, float | None]:
    """By nearest rank, and the mean; None where there is nothing."""
    ranked = sorted(values)
    if not ranked:
        return dict.fromkeys(("mean", *(f"p{p}" for p in PERCENTILES)))
    shown: dict[str, float | None] = {"mean": sum(ranked) / len(ranked)}
    for p in PERCENTILES:
        shown[f"p{p}"] = ranked[-(-p * len(ranked) // 100) - 1]
    return shown


def print_report(report: dict[str, Any], *, as_json: bool) -> None:
    """On stdout."""
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
        return
    from rich.console import Console
    from rich.table import Table

    times = Table("", "mean", *(f"p{p}" for p in PERCENTILES), title="Times, ms")
    facts = Table(title="Totals", show_header=False)
    for name, value in report.items():
        if isinstance(value, dict):
            shown = ["—" if seconds is None else f"{seconds * 1e3:,.1f}" for seconds in value.values()]
            times.add_row(name.removesuffix("_seconds").replace("_", " "), *shown)
        else:
            facts.add_row(name.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else f"{value:,}")
    Console().print(times, facts)
