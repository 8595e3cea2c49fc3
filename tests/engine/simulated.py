"""What stands in for a model in the engine's tests: an all-async device, two runners, and a tokenizer of bytes.

Nothing here uses a thread or a real clock, so the whole engine runs on `MockClock`, the same way each time.
"""

import codecs
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from property_tests.memory import MemoryDevice
from triolet.engine.assembly import EngineParts
from triolet.engine.core.errors import InvalidRequest
from triolet.engine.core.ids import TokenId
from triolet.engine.core.plan import StepPlan, StepResult
from triolet.engine.core.scheduler import Scheduler, SchedulerConfig
from triolet.engine.device import DeviceFailed, DeviceLost
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

    def _forced(self, row: Any) -> TokenId | None:
        """No grammar changes what it says."""
        return None


Fault = Exception | float


class SimulatedDevice:
    """A step takes `step_s` of the trio clock, and a restore `restore_s`.

    `faults` are by the step that they happen in, once: an exception to be raised (DeviceLost: its memory is gone), or
    seconds to hang, before which it can be given up if it is `replaceable`. One that does not recover fails in restore.
    """

    def __init__(self, make_runner: Callable[[], MemoryDevice], *, step_s: float = 1.0) -> None:
        self.faults: dict[int, Fault] = {}
        self.recovers = True
        self.replaceable = False
        self.step_s = step_s
        self.restore_s = 0.0
        self.plans: list[StepPlan] = []
        self._make_runner = make_runner
        self._runner: MemoryDevice | None = make_runner()
        self._sent: deque[tuple[StepPlan, float]] = deque()
        self._broken = False
        self._given_up = False

    def send(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        if self._broken:
            return
        fault = self.faults.get(plan.step)
        begins = max([trio.current_time(), *(ends for _, ends in self._sent)])
        self._sent.append((plan, begins + self.step_s + (fault if isinstance(fault, float) else 0)))

    async def receive(self) -> StepResult:
        await trio.sleep_until(0 if self._given_up else self._sent[0][1])
        plan, _ = self._sent.popleft()
        fault = DeviceLost("it hung") if self._given_up else self.faults.pop(plan.step, None)
        if not isinstance(fault, Exception):
            assert self._runner is not None
            return self._runner.execute(plan)
        self._sent.clear()
        self._broken = True
        if isinstance(fault, DeviceLost):
            self._runner = None
            raise fault
        raise DeviceFailed.by(fault) from fault

    async def restore(self) -> bool:
        await trio.sleep(self.restore_s)
        if not self.recovers:
            error = OSError("the simulated device fell over")
            raise DeviceFailed.by(error) from error
        self._broken = self._given_up = False
        if self._runner is None:
            self._runner = self._make_runner()
            return False
        self._runner.reset()
        return True

    async def watch(self) -> None:
        await trio.sleep_forever()

    def give_up(self) -> None:
        self._given_up = self.replaceable


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
    chat_templates: Mapping[str, str] = {}
    special_tokens: Mapping[str, str] = {}
    infill_token_ids: tuple[int, int, int] | None = None

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

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

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
    **parts_settings: Any,
) -> Simulation:
    """Parts for `run_engine`, around a real scheduler and cache. A step takes a second; the device fails for good at
    `fail_at`. `parts_settings` are for the engine's own settings (step_timeout_s, …)."""
    cache = KVCacheManager(num_blocks=num_blocks, block_size=block_size)
    limits = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    make_runner = partial(runner, num_blocks=num_blocks, block_size=block_size, vocab_size=VOCAB_SIZE)
    device = SimulatedDevice(make_runner, step_s=step_s)
    if fail_at is not None:
        device.faults[fail_at] = OSError("planted")
        device.recovers = False
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
        **parts_settings,
    )
    return Simulation(parts, device, cache)
