"""Swap attention backends: the same prompts through each that this machine has, and through one made here.

python -m labs.backends
"""

import itertools
import sys

import attrs

from triolet.engine.core.errors import ConfigurationError
from triolet.engine.core.logprobs import TokenLogprobs
from triolet.engine.core.params import SamplingParams
from triolet.model.attention.interface import AttentionBackend
from triolet.model.attention.registry import backend_names, register_backend
from triolet.model.attention.torch_backend import TorchAttention

from .lab import Lab, ask_all, open_watched, run

TITLE = "Swap attention backends"
TEXTS = ("Once upon a time, in a village by the sea,", "1, 2, 4, 8, 16,", "The capital of France is")
ANSWER = 16
NUM_LAYERS = 30
CLOSE = 0.02
"""Most that the log-probabilities of one token may differ by: sums of floats in another order."""


class CountingAttention(TorchAttention):
    """A backend of our own: the torch one, and a count of how often a layer attended."""

    name = "counting"
    num_calls = 0

    def attend(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        CountingAttention.num_calls += 1
        return super().attend(*args, **kwargs)  # type: ignore[arg-type]


def load_counting() -> type[AttentionBackend]:
    """The registry calls this when the backend is chosen, and not before."""
    return CountingAttention


@attrs.frozen
class Seen:
    """What one backend made of the texts."""

    tokens: list[tuple[int, ...]]
    logprobs: list[tuple[TokenLogprobs, ...]]
    milliseconds: float
    """Of a decode step, in the middle."""
    num_steps: int


async def through(name: str) -> Seen:
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, logprobs=1)
    async with open_watched(attention_backend=name) as (engine, watch):
        answers = await ask_all(engine, TEXTS, params)
    seconds = sorted(time.device_seconds for time in watch.times if not time.num_prefill_tokens)
    return Seen(
        [answer.token_ids for answer in answers],
        [answer.logprobs for answer in answers],
        1e3 * seconds[len(seconds) // 2],
        len(watch.steps),
    )


async def story(lab: Lab) -> None:
    if "counting" not in backend_names():
        register_backend("counting", load_counting)
    CountingAttention.num_calls = 0
    lab.say(f"""{len(TEXTS)} texts are continued by {ANSWER} tokens, once with each attention backend:
        --attention-backend NAME on the command line. 'native' runs whole steps in C++; the others are the attention of
        a torch model. 'counting' was registered by this script: it is torch's, and counts the layers that it attends
        in.""")
    seen: dict[str, Seen] = {}
    rows: list[tuple[object, ...]] = []
    for name in backend_names():
        try:
            seen[name] = await through(name)
        except* ConfigurationError as group:
            reason = str(group.exceptions[0]).partition(" cannot be used here: ")[2] or str(group.exceptions[0])
            rows.append((name, "-", "-", f"not here: {reason[:60]}"))
    for name, found in seen.items():
        rows.append((name, f"{found.milliseconds:.1f}", f"{furthest(found, seen['torch']):.1e}", ""))
    lab.table(("backend", "ms of a decode of 3", "log-probabilities, off torch's by", ""), rows)
    lab.say("""Programs that add the same numbers in another order differ in the last bits, so answers are compared
        by how likely each token was, as far as both chose the same ones.""")
    torch, counting = seen["torch"], seen["counting"]
    lab.claim("torch's backend runs on every machine", "torch" in seen)
    lab.claim(
        "ours says, bit for bit, what torch's says, for it is the same code",
        (counting.tokens, furthest(counting, torch)) == (torch.tokens, 0.0),
    )
    calls = NUM_LAYERS * counting.num_steps
    lab.claim(
        f"it was called for each of {NUM_LAYERS} layers in each of {counting.num_steps} steps",
        CountingAttention.num_calls == calls,
    )
    for name, found in seen.items():
        lab.claim(f"{name}: every log-probability is within {CLOSE} of torch's", furthest(found, torch) < CLOSE)
    lab.end_claims()


def furthest(found: Seen, reference: Seen) -> float:
    """The largest difference for the same token after the same beginning."""
    differences = [0.0]
    for mine, theirs in zip(found.logprobs, reference.logprobs, strict=True):
        same = itertools.takewhile(lambda pair: pair[0].token_id == pair[1].token_id, zip(mine, theirs, strict=True))
        differences += [abs(one.logprob - other.logprob) for one, other in same]
    return max(differences)


def main() -> int:
    return run(TITLE, story)


if __name__ == "__main__":
    sys.exit(main())
