"""The engine from inside: what the page shows is what /metrics says, and it costs nothing when nobody looks."""

import re
from contextlib import AsyncExitStack

import httpx
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.api.live.test_route import METRICS, post
from tests.contract.stage import Stage, staged, until
from triolet.api.log import Throughput

from .browsing import Browser, Keys
from .test_chat import opened

FIGURES = ("running", "waiting", "kv_usage", "prefix_hits", "generation_tokens", "preemptions", "wasted_tokens")
FIGURE = "document.querySelector('[data-figure={}]')"
COUNTS = """Object.fromEntries([...document.querySelectorAll('[data-state-count]')].map(
  (element) => [element.dataset.stateCount, Number(element.textContent.replaceAll(',', ''))]))"""
ROWS = """Object.fromEntries([...document.querySelectorAll('#queue tbody tr')].map((row) =>
  [row.dataset.request, [1, 3, 4].map((cell) => row.children[cell].textContent)]))"""
NOTE_STATES = """(window.states = [], new MutationObserver(() => {
  const state = document.getElementById('link').dataset.state;
  if (window.states.at(-1) !== state) window.states.push(state);
}).observe(document.getElementById('link'), { attributeFilter: ['data-state'] }))"""
BLOCK = "document.querySelector('#block')?.textContent ?? ''"


async def shown(browser: Browser, figure: str) -> str:
    return str(await browser.get(f"{FIGURE.format(figure)}.textContent"))


async def metrics(stage: Stage) -> dict[str, float]:
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
        page = (await client.get(f"http://127.0.0.1:{stage.port}/metrics")).text
    return {sample.name: sample.value for family in text_string_to_metric_families(page) for sample in family.samples}


async def load(stage: Stage, stack: AsyncExitStack, count: int) -> None:
    for number in range(count):
        stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", stage.port))
        await stream.send_all(post(stage, f"r{number}", f"hello to all of you {number % 2}\n", max_tokens=99))
        await until(lambda number=number: stage.num_open == number + 1)


async def test_the_page_agrees_with_the_metrics_the_log_and_the_stories(browser: Browser) -> None:
    """Six requests for four places, held at a step: figures, legend, rows and the last step are those of /metrics, of
    the log's line, and of the requests' stories."""
    async with (
        staged(num_blocks=40, max_num_batched_tokens=24) as stage,
        opened(browser, stage),
        AsyncExitStack() as stack,
    ):
        throughput = Throughput(stage.engine.stats(), 0.0)
        await load(stage, stack, 6)
        await stage.step(9)
        found = await metrics(stage)
        steps = int(found["triolet:steps_total"])
        await browser.until(
            f"+{FIGURE.format('generation_tokens')}.dataset.value === {found['vllm:generation_tokens_total']}"
        )
        await browser.until(f"document.getElementById('steps-note').textContent.startsWith('{steps - 1} landed')")
        for figure in (
            "running",
            "waiting",
            "kv_usage",
            "prefix_hits",
            "generation_tokens",
            "preemptions",
            "wasted_tokens",
        ):
            assert float(await browser.get(f"{FIGURE.format(figure)}.dataset.value")) == found[METRICS[figure]], figure
        assert await browser.get(f"{FIGURE.format('kv_usage')}.textContent") == (
            f"{100 * found['vllm:kv_cache_usage_perc']:.1f} %"
        )
        counts = await browser.get(COUNTS)
        held = counts["owned"] + counts["shared"] + counts["limbo"]
        assert sum(counts.values()) == 40
        assert held / 40 == found["vllm:kv_cache_usage_perc"]
        assert counts["free"] + counts["cached"] == found["triolet:kv_blocks_free"]
        line = throughput.line(stage.engine.stats(), 1.0)
        assert line is not None
        for words in (
            f"Running: {await shown(browser, 'running')} reqs, Waiting: {await shown(browser, 'waiting')} reqs",
            f"Preemptions: {await shown(browser, 'preemptions')}, ",
            f"KV cache usage: {await shown(browser, 'kv_usage')}, ",
            f"Prefix cache hit rate: {await shown(browser, 'prefix_hits')}",
        ):
            assert words.replace(" %", "%") in line
        rows = await browser.get(ROWS)
        assert rows == {
            story.name: [
                str(story.state),
                str(story.num_cached_tokens),
                f"{story.num_output_tokens} / {story.max_tokens}",
            ]
            for story in stage.engine.stories()
        }
        assert len(rows) == 6
        drawn = await browser.get("document.querySelectorAll('#steps canvas, #rates canvas, #times canvas').length")
        assert drawn == 3
        stage.device.step(float("inf"))
        await browser.until("document.querySelectorAll('#queue tbody tr').length === 0")
        await browser.until("document.querySelectorAll('#tree li[data-hash]').length > 0")


async def test_a_block_tells_what_is_in_it_to_the_pointer_and_to_the_keys(browser: Browser) -> None:
    """State, references, hash, owners and tokens; arrow keys go from one to the next; Escape leaves."""
    async with staged(max_num_batched_tokens=64) as stage, opened(browser, stage), AsyncExitStack() as stack:
        await load(stage, stack, 1)
        await stage.step(2)
        await browser.until(f"{COUNTS}.owned === 6")
        await browser.hover("#map canvas", 5, 5)
        told = await browser.until(f"({BLOCK}).includes('Block 0') && ({BLOCK})")
        assert re.search(r"owned.*references 1.*hash [0-9a-f]{12}.*4 tokens.*owner r0.*hell", told)
        await browser.hover("h1", 1, 1)
        await browser.until(f"({BLOCK}).startsWith('Point at a block')")
        await browser.get("document.querySelector('#map canvas').focus()")
        await browser.press(Keys.ARROW_RIGHT)
        await browser.until(f"({BLOCK}).includes('Block 1') && ({BLOCK}).includes('o to')")
        await browser.press(Keys.END)
        await browser.until(f"({BLOCK}).includes('Block 255') && ({BLOCK}).includes('free')")
        await browser.press(Keys.ESCAPE)
        await browser.until(f"({BLOCK}).startsWith('Point at a block')")


async def test_nobody_looking_costs_nothing(browser: Browser) -> None:
    """The page watches while it is seen; closed, the server has no watcher and samples no more."""
    async with staged(step_freely=True) as stage, opened(browser, stage):
        hub = stage.run.hub
        assert hub is not None
        await until(lambda: hub.num_watchers == 1)
        await browser.resize(400, 800)
        await until(lambda: hub.num_watchers == 0)
        await browser.click("#show-inside")
        await until(lambda: hub.num_watchers == 1)
        await browser.open("about:blank")
        await until(lambda: hub.num_watchers == 0)
        samples = hub.num_samples
        async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
            await client.post(f"http://127.0.0.1:{stage.port}/v1/completions", json={"prompt": "hello\n"})
        assert hub.num_samples == samples
        assert not stage.simulation.cache.events.wanted


async def test_a_pool_of_a_hundred_thousand_blocks_is_drawn_in_cells(browser: Browser) -> None:
    """Twenty-five to a cell; a cell tells the blocks of its own that are not free."""
    async with (
        staged(num_blocks=100_000, max_num_batched_tokens=64) as stage,
        opened(browser, stage),
        AsyncExitStack() as stack,
    ):
        await load(stage, stack, 1)
        await stage.step(2)
        await browser.until(f"{COUNTS}.owned === 6")
        assert "25 to a cell" in await browser.get("document.getElementById('map-note').textContent")
        await browser.hover("#map canvas", 2, 2)
        told = await browser.until(f"({BLOCK}).includes('Block 0') && ({BLOCK})")
        assert told.startswith("Blocks 0 to 24")
        assert "hell" in told


async def test_a_lost_stream_is_found_again(browser: Browser) -> None:
    """The server hangs up: the page says so and comes back by itself."""
    async with staged(step_freely=True) as stage, opened(browser, stage):
        hub = stage.run.hub
        assert hub is not None
        await browser.until("document.getElementById('link').dataset.state === 'open'")
        await until(lambda: hub.num_watchers == 1)
        await browser.get(NOTE_STATES)
        for watcher in tuple(hub._watchers):
            watcher.end()
        await browser.until("window.states.join() === 'lost,open'")
