"""One step under a debugger: the engine without its actors is four calls, and here is what passes between them.

    python -m labs.debugger           the session below, typed by a script
    python -m labs.debugger --stop    the same place, and you type

No thread and no event loop: the scheduler and the runner are called by hand.
"""

import io
import pdb  # noqa: T100 -- this lab is about it
import sys

import torch

from triolet.engine.core.events import StepEvents
from triolet.engine.core.ids import RequestId, TokenId
from triolet.engine.core.params import SamplingParams
from triolet.engine.core.plan import StepPlan, StepResult
from triolet.engine.core.request import Request
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.kvcache.manager import KVCacheManager
from triolet.model.kv import KVTensors
from triolet.model.llama import build_model
from triolet.model.runner import ModelRunner
from triolet.model.source import resolve_source
from triolet.model.tokenizer import load_tokenizer
from triolet.model.weights import read_spec, read_weights

from .lab import BLOCK_SIZE, Lab, run

TITLE = "One step under a debugger"
TEXT = "The three primary colours are red, yellow and"
NUM_BLOCKS = 8
SESSION = """n
n
p plan.step, plan.num_tokens, plan.num_sequences
p plan.joined[0].token_ids
p plan.joined[0].block_tables
p plan.chunk_sequences, plan.chunk_lengths
n
p result.sequences, result.token_ids
p tokenizer.decode(result.token_ids)
p kv.layers[0][plan.joined[0].block_tables[0][0], :10, 0, 0, 0]
n
n
p events.requests, events.token_ids
c
"""


class TypedDebugger(pdb.Pdb):
    """pdb, reading a script and showing what it reads."""

    def __init__(self, script: str) -> None:
        super().__init__(stdin=io.StringIO(script), stdout=sys.stdout, nosigint=True, readrc=False)
        self.use_rawinput = False
        self.prompt = "(Pdb) "

    def precmd(self, line: str) -> str:
        print(line)
        return super().precmd(line)


class Engine:
    """A model, a cache and a scheduler."""

    def __init__(self) -> None:
        source = resolve_source(None)
        spec = read_spec(source)
        cpu = torch.device("cpu")
        weights = read_weights(source, spec)
        model = build_model(spec, weights, dtype=torch.float32, device=cpu, max_model_len=NUM_BLOCKS * BLOCK_SIZE)
        self.tokenizer = load_tokenizer(source)
        self.kv = KVTensors(spec, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=torch.float32)
        for tensor in self.kv.tensors:
            tensor.zero_()  # so that what a step has written shows; the engine itself never clears
        self.runner = ModelRunner(model, kv=self.kv)
        self.cache = KVCacheManager(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
        self.scheduler = Scheduler(SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64), self.cache)

    def submit(self, name: str, text: str, max_tokens: int) -> None:
        tokens = tuple(map(TokenId, self.tokenizer.encode(text)))
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self.scheduler.submit(Request(id=RequestId(name), prompt_token_ids=tokens, params=params, seed=0))

    def step(self, now: float) -> "Step":
        """One step of the engine. The loop in engine/loop.py does this, and waits for the device in the middle."""
        scheduler, runner, tokenizer, kv = self.scheduler, self.runner, self.tokenizer, self.kv  # noqa: F841
        plan = scheduler.plan(now)
        result = runner.execute(plan)
        scheduler.commit(result, now)
        events = scheduler.take_events()
        return plan, result, events


async def story(lab: Lab) -> None:
    engine = Engine()
    engine.submit("colours", TEXT, max_tokens=3)
    lab.say(f"""A request waits: {TEXT!r}. Engine.step in this file is four calls: plan, execute, commit,
        take_events. The debugger goes through it line by line.""")
    debugger = pdb.Pdb() if "--stop" in sys.argv else TypedDebugger(SESSION)
    first = debugger.runcall(engine.step, 0.0)
    assert first is not None
    print()
    second, third = engine.step(1.0), engine.step(2.0)
    lab.say(f"""The second step's plan: {second[0].num_tokens} token, nobody joined, no block table, no chunks. A
        plan is what has changed, and nothing had. The third answer token ended the request.""")
    check(lab, engine, first, second, third)


Step = tuple[StepPlan, StepResult, StepEvents]


def check(lab: Lab, engine: Engine, first: Step, second: Step, third: Step) -> None:
    """What the session showed."""
    plan, result, events = first
    tokens = tuple(engine.tokenizer.encode(TEXT))
    (joined,) = plan.joined
    lab.claim(
        f"the first plan computes the {len(tokens)} tokens of the prompt in one chunk",
        (plan.num_tokens, plan.chunk_lengths, joined.token_ids) == (len(tokens), (len(tokens),), tokens),
    )
    lab.claim(
        "its block table holds them, with no block to spare",
        len(joined.block_tables[0]) == -(-len(tokens) // BLOCK_SIZE),
    )
    block = joined.block_tables[0][0]
    slots = engine.kv.layers[0][block][:, 0].abs().sum(dim=(1, 2))
    written = min(len(tokens) + 2, BLOCK_SIZE)
    lab.claim(
        "the first block has keys in the slots that were computed, and in no other",
        bool((slots[:written] > 0).all() and (slots[written:] == 0).all()),
    )
    lab.claim("the result is one token for the one sequence", result.sequences == (joined.sequence,))
    lab.claim("the events name the request, not the sequence", events.requests == (RequestId("colours"),))
    lab.claim(
        "the second plan says nothing but its number of tokens",
        (second[0].num_tokens, second[0].joined, second[0].left, second[0].write_blocks) == (1, (), (), ()),
    )
    lab.claim(
        "the third step ended it, and all blocks are back",
        len(third[2].finished) == 1 and engine.cache.num_free_blocks == NUM_BLOCKS,
    )
    said = [step[1].token_ids[0] for step in (first, second, third)]
    lab.claim(f"it said {engine.tokenizer.decode(said)!r}", "blue" in engine.tokenizer.decode(said))
    lab.end_claims()


def main() -> int:
    return run(TITLE, story)


if __name__ == "__main__":
    sys.exit(main())
