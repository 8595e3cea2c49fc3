"""The chat: streams, stops, asks again, several at once; and what it shows is what the server counts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.contract.stage import Stage, staged, until

from .browsing import Browser, Keys

PAGE = "http://127.0.0.1:{}/ui"
LAST = "[...document.querySelectorAll('.chat:not([hidden]) .turn.assistant')].at(-1)"
STATE = f"{LAST}?.dataset.state"
TEXT = f"{LAST}.querySelector('.text').textContent"
SHOWN = ".chat:not([hidden])"


@asynccontextmanager
async def opened(browser: Browser, stage: Stage) -> AsyncIterator[None]:
    """The page, until the block is left: it is gone before the server is."""
    await browser.open(PAGE.format(stage.port))
    await browser.until("document.getElementById('model').textContent === 'echo'")
    yield
    await browser.open("about:blank")


async def say(browser: Browser, text: str) -> None:
    await browser.type(f"{SHOWN} textarea", text, Keys.ENTER)


async def fact(browser: Browser, name: str) -> str:
    return str(await browser.get(f"{LAST}.querySelector('[data-fact={name}]')?.textContent ?? ''"))


async def test_an_answer_streams_and_tells_how_it_went(browser: Browser) -> None:
    """It grows with the steps; at its end it has the time to first token, the rate, and what the cache spared."""
    async with staged() as stage, opened(browser, stage):
        await say(browser, "hello there")
        await until(lambda: stage.device.waits)
        assert await browser.get(STATE) == "waiting"
        await stage.step(3)
        await browser.until(f"{TEXT} === 'hel'")
        assert await browser.get(STATE) == "writing"
        await stage.step(2)
        await browser.until(f"{TEXT} === 'hello'")
        stage.device.step(float("inf"))
        await browser.until(f"{STATE} === 'done'")
        assert await browser.get(TEXT) == "hello there"
        assert await fact(browser, "tokens") == "12 tokens"
        assert await fact(browser, "cached") == "0 of 12 prompt tokens cached"
        assert "to first token" in await fact(browser, "ttft")
        assert "tokens/s" in await fact(browser, "rate")
        (story,) = stage.engine.stories()
        assert story.name.startswith("ui-")


async def test_stopping_frees_the_request_at_the_next_step(browser: Browser) -> None:
    """By the button, and by Escape: the server hears of it at once, and every block is back after one step."""
    async with staged() as stage, opened(browser, stage):
        for stop in ("button", "key"):
            await say(browser, "hello there")
            await until(lambda: stage.device.waits)
            await stage.step(3)
            await browser.until(f"{TEXT} === 'hel'")
            if stop == "button":
                await browser.click(f"{SHOWN} .buttons button[type=button]")
            else:
                await browser.type(f"{SHOWN} textarea", Keys.ESCAPE)
            await browser.until(f"{STATE} === 'stopped'")
            await until(lambda: not stage.num_open)
            await stage.step(1)
            assert stage.engine_is_empty()
            assert await browser.get(TEXT) == "hel"
            assert await fact(browser, "end") == "stopped"
            assert stage.engine.stories()[0].abort_reason == "left"
            await browser.until("document.activeElement.tagName === 'TEXTAREA'")
            await browser.click("[aria-label='New chat']")


async def test_an_answer_can_be_had_again(browser: Browser) -> None:
    """Regenerate asks the same once more, in the old one's place; the prompt is found in the cache."""
    async with staged(step_freely=True) as stage, opened(browser, stage):
        await say(browser, "hello there")
        await browser.until(f"{STATE} === 'done'")
        await browser.until(f"!{LAST}.querySelector('.again').hidden")
        await browser.click(f"{SHOWN} .turn.assistant:last-child .again")
        await browser.until(
            f"{STATE} === 'done' && {LAST}.querySelector('[data-fact=cached]').textContent.startsWith('8')"
        )
        assert await browser.get(TEXT) == "hello there"
        assert await browser.get("document.querySelectorAll('.turn').length") == 2
        assert await fact(browser, "cached") == "8 of 12 prompt tokens cached"
        first, second = (story.num_prompt_tokens for story in stage.engine.stories())
        assert first == second == 12


async def test_several_chats_at_once(browser: Browser) -> None:
    """A second chat is answered while the first one is; each tab says that it is busy; both end."""
    async with staged() as stage, opened(browser, stage):
        await say(browser, "first of two")
        await browser.click("[aria-label='New chat']")
        assert await browser.focused() == "Message"
        await browser.press("second", Keys.ENTER)
        await until(lambda: stage.num_open == 2 and stage.device.waits)
        await browser.until("document.querySelectorAll('.tab[data-busy=true]').length === 2")
        await browser.until("document.querySelectorAll('#queue tbody tr').length === 2")
        assert await browser.get("[...document.querySelectorAll('#queue .name span')].map((e) => e.textContent)") == [
            "this page",
            "this page",
        ]
        stage.device.step(float("inf"))
        await browser.until("document.querySelectorAll('.tab[data-busy=true]').length === 0")
        assert await browser.get(TEXT) == "second"
        await browser.click(".tab")
        assert await browser.get(TEXT) == "first of two"


async def test_closing_a_chat_stops_its_answer(browser: Browser) -> None:
    """The other one is shown, and the server has the blocks back; the last chat cannot be closed."""
    async with staged() as stage, opened(browser, stage):
        close = '[aria-label="Close this chat"]'
        assert await browser.get(f"document.querySelector('{close}').hidden")
        await browser.click("[aria-label='New chat']")
        await say(browser, "hello there")
        await until(lambda: stage.device.waits)
        await browser.click(close)
        await until(lambda: not stage.num_open)
        await stage.step(1)
        assert stage.engine_is_empty()
        assert await browser.get("document.querySelectorAll('.tab').length") == 1
        assert await browser.get(f"document.querySelector('{close}').hidden")
        assert await browser.focused() == "Message"


async def test_what_is_said_is_text(browser: Browser) -> None:
    """Markup in a question and in its answer stays letters."""
    async with staged(step_freely=True) as stage, opened(browser, stage):
        words = "<img src=x onerror=alert(1)><b>bold</b>"
        await say(browser, words)
        await browser.until(f"{STATE} === 'done'")
        assert await browser.get(TEXT) == words
        assert (
            await browser.get("document.querySelectorAll('.said img, .said b:not(.facts b), .said script').length") == 0
        )


async def test_a_refusal_is_shown_where_the_answer_would_be(browser: Browser) -> None:
    """In the server's own words, and the chat goes on."""
    async with staged(step_freely=True) as stage, opened(browser, stage):
        await say(browser, "x" * 300)
        await browser.until(f"{STATE} === 'failed'")
        assert "301" in await browser.get(f"{LAST}.querySelector('.failed').textContent")
        browser.console_errors()  # the browser notes the 400 there
        await browser.click("[aria-label='New chat']")
        await say(browser, "hello")
        await browser.until(f"{STATE} === 'done'")
