"""What stands in for a model in the engine's tests: an all-async device, two runners, and a tokenizer of bytes.

Nothing here uses a thread or a real clock, so the whole engine runs on `MockClock`, the same way each time.
"""

import codecs
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import trio

from property_tests.memory import MemoryDevice
from triolet.engine.assembly import EngineParts
from triolet.engine.core.errors import InvalidRequest
from triolet.engine.core.ids import TokenId
from triolet.engine.core.plan import StepPlan, StepResult
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.engine.device import DeviceFailed
from triolet.engine.engine import EngineFacts
from triolet.kvcache.manager import KVCacheManager

EOS = 0
END_OF_PROMPT = ord("\n")
VOCAB_SIZE = 256


class EchoMemory(MemoryDevice):
    """A model that says its prompt's first line, then ends. It gathers through the block table all the same."""

    def _gather(self, row: Any, *args: Any) -> TokenId:
        super()._gather(row, *args)
        length = row.tokens.index(END_OF_PROMPT)
        said = len(row.tokens) - length - 1
        return TokenId(row.tokens[said] if said < length else EOS)


class SimulatedDevice:
    """A step takes `step_s` of the trio clock. `fail_at` is the step that raises instead."""

    def __init__(self, runner: MemoryDevice, *, step_s: float = 1.0, fail_at: int | None = None) -> None:
        self.runner = runner
        self.step_s = step_s
        self.fail_at = fail_at
        self.plans: list[StepPlan] = []
        self._sent: deque[StepPlan] = deque()

    def send(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        self._sent.append(plan)

    async def receive(self) -> StepResult:
        await trio.sleep(self.step_s)
        plan = self._sent.popleft()
        if plan.step == self.fail_at:
            raise DeviceFailed("A step failed on the device.") from OSError("the simulated device fell over")
        return self.runner.execute(plan)


class ByteDecoder:
    """Bytes to text, never half a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(bytes(ids))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteTokenizer:
    """A token is a byte. A message whose content is "raise" or "refuse" breaks the template, in two ways."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = (EOS,)
    has_chat_template = True

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode(errors="replace")

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> str:
        contents = [message["content"] for message in messages]
        if "raise" in contents:
            raise ZeroDivisionError("inside the template")
        if "refuse" in contents:
            raise InvalidRequest("The template refuses.", param="messages")
        return "".join(f"{content}\n" for content in contents)

    def incremental(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True) -> ByteDecoder:
        return ByteDecoder()


@attrs.define
class Simulation:
    """The parts of an engine, and what a test looks at besides."""

    parts: EngineParts
    device: SimulatedDevice
    cache: KVCacheManager

    @property
    def all_blocks_are_back(self) -> bool:
        self.cache.check()
        return self.cache.num_free_blocks == self.cache.num_blocks


def simulate(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_model_len: int = 64,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 32,
    max_num_queued_reqs: int = 16,
    step_s: float = 1.0,
    fail_at: int | None = None,
    runner: type[MemoryDevice] = EchoMemory,
    tokenizer: ByteTokenizer | None = None,
) -> Simulation:
    """Parts for `run_engine`, around a real scheduler and cache. A step takes a second."""
    cache = KVCacheManager(num_blocks=num_blocks, block_size=block_size)
    limits = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    memory = runner(num_blocks=num_blocks, block_size=block_size, vocab_size=VOCAB_SIZE)
    device = SimulatedDevice(memory, step_s=step_s, fail_at=fail_at)
    parts = EngineParts(
        facts=EngineFacts(
            model_name="echo",
            max_model_len=max_model_len,
            vocab_size=VOCAB_SIZE,
            max_num_seqs=max_num_seqs,
            end_token_ids=(TokenId(EOS),),
            created=0,
        ),
        tokenizer=tokenizer if tokenizer is not None else ByteTokenizer(),
        scheduler=Scheduler(limits, cache),
        cache=cache,
        device=device,
        max_num_queued_reqs=max_num_queued_reqs,
    )
    return Simulation(parts, device, cache)
