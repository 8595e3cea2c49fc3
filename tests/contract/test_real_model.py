"""The contract around a real model, on the real device thread: what steps on its own is freed all the same."""

import pytest

from tests.acceptance.asking import check_pool_is_free
from tests.acceptance.models import RandomModel, random_model
from tests.acceptance.serving import serving
from triolet.engine.core.params import SamplingParams

from .clients import PROTOCOLS, connect
from .stage import until

LONGEST = 2048


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> RandomModel:
    return random_model(tmp_path_factory.mktemp("models") / "random", seed=5, max_position_embeddings=LONGEST)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"n": 3, "use_beam_search": True}], ids=["one", "three", "beams"])
async def test_leaving_stops_a_real_model(protocol: str, fields: dict[str, int], model: RandomModel) -> None:
    """Every way to leave, in decode: its tokens are not all made, the pool is free, and the next answer is whole."""
    streamed = not fields.get("use_beam_search")
    asked = {"prompt": [5, 6, 7], "max_tokens": LONGEST - 8, "ignore_eos": True, "stream": streamed, **fields}
    async with serving(model.config(num_blocks=1024)) as served:
        for way in PROTOCOLS[protocol].WAYS:
            before = served.engine.stats()
            client = await connect(protocol, served.port)
            await client.ask("/v1/completions", asked)
            if streamed:
                await client.read_until(b'"text":')
            else:
                await until(lambda before=before: served.engine.stats().steps > before.steps + 3)
            await client.leave(way)
            await until(lambda: not served.engine.stats().running and not served.run.lifecycle.open_requests)
            check_pool_is_free(served.engine)
            made = served.engine.stats().generation_tokens - before.generation_tokens
            assert made < fields.get("n", 1) * (LONGEST - 8)
            await client.close()
        await served.wait_idle()
        prompt, length = [9, 8, 7], 8
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        async with served.engine.generate(prompt, params) as stream:
            tokens = [token async for output in stream for token in output.token_ids]
        assert len(tokens) == length
