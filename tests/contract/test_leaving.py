"""Client gone, in every state and every way: its request is out at the next step boundary and gives everything back."""

from collections.abc import Iterator
from typing import Any

import pytest

from .clients import PROTOCOLS, connect
from .stage import staged, until
from .states import SHUT, STATES, State, body


def cases() -> Iterator[Any]:
    """Every protocol and way, state, kind of answer; beams aren't streamed."""
    for protocol, client in PROTOCOLS.items():
        for way in client.WAYS:
            for state in STATES + (SHUT if protocol == "http/2" else []):
                for streamed in state.streamed:
                    for kind, fields in state.kinds.items():
                        if not (streamed and kind == "beams"):
                            how = "streamed" if streamed else "plain"
                            yield pytest.param(
                                protocol,
                                way,
                                state,
                                {**fields, "stream": streamed},
                                id=f"{protocol} {way} {state.name} {how} {kind}",
                            )


@pytest.mark.parametrize(("protocol", "way", "state", "fields"), list(cases()))
async def test_leaving_gives_everything_back(protocol: str, way: str, state: State, fields: dict[str, Any]) -> None:
    """Out of the scheduler at the next step boundary, at most the step in flight wasted, tasks and descriptors gone."""
    async with staged() as stage:
        stage.tokenizer.loud = state.loud
        client = await connect(protocol, stage.port, stalled=state.stalled, window=state.window)
        await state.reach(stage, client, body(**fields))
        num_plans = stage.num_plans
        await client.leave(way)
        await until(lambda: stage.num_open == state.num_others)
        if stage.device.waits:
            await stage.step()
        assert stage.num_plans == num_plans + state.num_others, "no later plan has it"
        num_sequences = fields.get("n", 1)
        assert stage.wasted_tokens <= (num_sequences if state.tokens_in_flight else 0)
        if not state.num_others:
            assert state.name == "tokenizing" or stage.engine_is_empty()
        for other in stage.others:
            stage.device.step(1000)
            assert (await other.read()).count(b'"content":"h"') == 4
            await other.close()
        await client.close()
        await stage.wait_all_gone()
