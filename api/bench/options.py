"""The flags that several commands of `triolet bench` share, and their checks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import msgspec
from cyclopts import Parameter

from ...engine.core.errors import ConfigurationError
from ..config import KEY_VARIABLE
from .measure import Goals, parse_goals
from .prompts import FIRST_TOKEN_ID, Dataset, Endpoint, Maker, PromptOptions, TextMaker, TokenMaker, WordMaker

if TYPE_CHECKING:
    from .target import Target

NAMES = ("A", "B")


def at_least(low: float) -> Any:
    """A validator that names the flag."""

    def check(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
        if value is not None and not value >= low:
            raise ConfigurationError(f"--{attribute.name.replace('_', '-')} must be at least {low:g}, not {value:g}.")

    return check


def above_zero(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
    """A validator that names the flag."""
    if value is not None and not 0 < value < float("inf"):
        raise ConfigurationError(f"--{attribute.name.replace('_', '-')} must be above 0, not {value:g}.")


def _one_or_two(_: object, __: object, value: tuple[str, ...]) -> None:
    if not 1 <= len(value) <= len(NAMES):
        raise ConfigurationError(f"--base-url may be given once or twice, not {len(value)} times.")


def _object(_: object, __: object, value: str | None) -> None:
    if value is not None:
        try:
            msgspec.json.decode(value, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"--extra-body must be a JSON object: {error}.") from None


@attrs.frozen(kw_only=True)
class ServerOptions:
    """Which servers."""

    base_url: Annotated[tuple[str, ...], Parameter(negative=())] = attrs.field(
        default=("http://127.0.0.1:8000",), validator=_one_or_two
    )
    """A server of OpenAI's protocol; given twice, the two take turns (A B, B A, …) and their ratios are printed."""
    model: str | None = None
    """The model's name; without it the first that the server lists."""
    api_key: Annotated[str | None, Parameter(env_var=KEY_VARIABLE, show_default=False)] = attrs.field(
        default=None, repr=False
    )
    """Sent as `Authorization: Bearer KEY`."""
    endpoint: Endpoint = "completions"
    """Which route is asked: completions, or chat."""
    extra_body: str | None = attrs.field(default=None, validator=_object)
    """A JSON object with fields for every request, over those that are sent anyway."""
    timeout: float = attrs.field(default=600.0, validator=above_zero)
    """Seconds until a request counts as failed."""

    async def probe(self) -> "list[Target]":
        """The servers, looked at: raises ServerUnusable."""
        from .target import probe

        extra = msgspec.json.decode(self.extra_body) if self.extra_body is not None else None
        return [
            await probe(url, name=name, model=self.model, api_key=self.api_key, endpoint=self.endpoint, extra=extra)
            for name, url in zip(NAMES, self.base_url, strict=False)
        ]


@attrs.frozen(kw_only=True)
class LengthOptions:
    """How prompts are made."""

    tokenizer: Path | None = None
    """A tokenizer.json, or a folder with one, for text prompts of exact length; without it a word counts as a token."""
    text_prompts: bool = False
    """Send text also where the server takes token ids."""
    vocab_size: int = attrs.field(default=30_000, validator=at_least(FIRST_TOKEN_ID + 1))
    """Token ids are drawn below this: it must not exceed the model's vocabulary."""
    seed: int = 0
    """Draws the prompts and the times between requests: the same seed, the same load."""

    def maker(self, targets: "list[Target]") -> Maker:
        """What makes the prompts: the same for all servers, so that they do the same work."""
        if not self.text_prompts and all(target.takes_token_ids for target in targets):
            return TokenMaker(self.vocab_size)
        return TextMaker(self.tokenizer) if self.tokenizer is not None else WordMaker()


@attrs.frozen(kw_only=True)
class LoadOptions:
    """What is sent, and how fast."""

    dataset: Dataset = "random"
    """random; shared-prefix (see --prefix-len); conversation (--turns requests, each with all before it); file."""
    num_requests: int = attrs.field(default=64, validator=at_least(1))
    """Requests (conversations, with --dataset conversation) for each server and round."""
    concurrency: int | None = attrs.field(default=None, validator=at_least(1))
    """Most requests at a time; 8, unless there is a --request-rate, which has no such bound."""
    request_rate: float | None = attrs.field(default=None, validator=above_zero)
    """Requests per second on average, at random times (a Poisson process)."""
    input_len: int = attrs.field(default=128, validator=at_least(1))
    """Tokens of a prompt; with a shared prefix, of its own part; in a conversation, of each turn."""
    output_len: int = attrs.field(default=128, validator=at_least(1))
    """Tokens of an answer: `ignore_eos` is sent."""
    prefix_len: int = attrs.field(default=1024, validator=at_least(1))
    """Tokens that all prompts of the dataset shared-prefix begin with."""
    num_prefixes: int = attrs.field(default=1, validator=at_least(1))
    """How many different shared prefixes there are."""
    turns: int = attrs.field(default=4, validator=at_least(1))
    """Requests of a conversation."""
    file: Path | None = None
    """JSON lines, each with `prompt` or `messages`, and `max_tokens` if it differs from --output-len."""
    rounds: int | None = attrs.field(default=None, validator=at_least(1))
    """How often it is all done; 1, or 3 with two servers."""

    interference: int | None = attrs.field(default=None, validator=at_least(1))
    """Instead of a load: a prompt of this many tokens arrives while one stream runs (3 rounds)."""

    @property
    def title(self) -> str:
        """The load in a line, for a plot."""
        pace = f"{self.request_rate:g} requests/s" if self.request_rate else f"{self.concurrency or 8} at a time"
        return f"{self.dataset}, {self.num_requests} x {self.input_len} / {self.output_len} tokens, {pace}"

    @property
    def prompts(self) -> PromptOptions:
        return PromptOptions(
            dataset=self.dataset,
            input_len=self.input_len,
            output_len=self.output_len,
            prefix_len=self.prefix_len,
            num_prefixes=self.num_prefixes,
            turns=self.turns,
            file=self.file,
        )


@attrs.frozen(kw_only=True)
class BatchOptions:
    """Batches for an engine without a server."""

    batch_size: int = attrs.field(default=8, validator=at_least(1))
    """Requests of a batch."""
    input_len: int = attrs.field(default=128, validator=at_least(1))
    """Tokens of a prompt."""
    output_len: int = attrs.field(default=128, validator=at_least(1))
    """Tokens of an answer."""
    iterations: int = attrs.field(default=5, validator=at_least(1))
    """Batches that are measured."""
    warmup: int = attrs.field(default=1, validator=at_least(0))
    """Batches before those."""


@attrs.frozen(kw_only=True)
class ThroughputOptions:
    """Many requests for an engine without a server."""

    prefix_len: int = attrs.field(default=0, validator=at_least(0))
    """Tokens that all prompts begin with, before their own."""
    num_requests: int = attrs.field(default=64, validator=at_least(1))
    """Requests, handed to the engine at once, as far as its queue takes them."""
    input_len: int = attrs.field(default=128, validator=at_least(1))
    """Tokens of a prompt."""
    output_len: int = attrs.field(default=128, validator=at_least(1))
    """Tokens of an answer."""


@attrs.frozen(kw_only=True)
class StartupOptions:
    """A server to start."""

    command: str | None = None
    """The command of another server, with {port} where its port goes; without it `triolet serve` and what follows --.
    """
    runs: int = attrs.field(default=3, validator=at_least(1))
    """How often it is started; the median counts."""
    kv_cache_memory: int | None = attrs.field(default=None, validator=at_least(1))
    """Bytes of the server's KV cache, to be taken off its memory; `triolet serve` is started with as much."""
    timeout: float = attrs.field(default=300.0, validator=above_zero)
    """Seconds that it may take to answer."""


@attrs.frozen(kw_only=True)
class CancelOptions:
    """Streams that are left."""

    trials: int = attrs.field(default=5, validator=at_least(1))
    """How often a stream is left; the median counts."""
    slots: int = attrs.field(default=1, validator=at_least(1))
    """Streams that the server runs at a time: so many are opened, one of them is left, and another takes its place."""
    after_events: int = attrs.field(default=16, validator=at_least(1))
    """Events of the stream that are read before it is left."""
    input_len: int = attrs.field(default=64, validator=at_least(1))
    """Tokens of a prompt."""
    output_len: int = attrs.field(default=512, validator=at_least(1))
    """Tokens that each stream would have had."""
    quiet: float = attrs.field(default=1.0, validator=above_zero)
    """Seconds without a new token after which the server is done."""


@attrs.frozen(kw_only=True)
class OutputOptions:
    """What comes out beside the table."""

    output: Path | None = None
    """A file for the figures, as JSON."""
    json: Annotated[bool, Parameter(negative=())] = False
    """Print the figures as JSON, and no table."""


@attrs.frozen(kw_only=True)
class ReportOptions(OutputOptions):
    """What comes out of a load."""

    plot: Annotated[Path | None, Parameter(show_default=False)] = None
    """A file (.png, .svg, .pdf) for plots of the times and the throughput; needs matplotlib."""

    goodput: Annotated[tuple[str, ...], Parameter(negative=(), consume_multiple=True)] = ()
    """Goals in milliseconds, `ttft:300 tpot:50` (also itl, e2e): the requests per second that meet all are printed."""

    @property
    def goals(self) -> Goals:
        return parse_goals(self.goodput)
