"""Keys, widths, themes, and coming in where a key is set."""

import pytest

from tests.contract.stage import staged, until

from .browsing import Browser, Keys
from .test_chat import PAGE, STATE, TEXT, opened, say

KEY, ADMIN = "a-key", "an-admin-key"
GROUND = "getComputedStyle(document.body).backgroundColor"

CONTRAST = """
(() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => {
    const [r, g, b] = channels(text).map((value) => value / 255).map((value) =>
      value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const ground = getComputedStyle(one).backgroundColor;
      if (channels(ground)[3] !== 0) return ground;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.matches(":disabled")) continue;
    const [one, other] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) poor.push(`${element.className || element.tagName}: ${ratio.toFixed(2)}`);
  }
  return poor;
})()
"""

CLIPPED = """
[...document.querySelectorAll('.u-wrap canvas')].filter((canvas) => {
  const edge = new OffscreenCanvas(1, canvas.height).getContext('2d', {willReadFrequently: true});
  edge.drawImage(canvas, canvas.width - 1, 0, 1, canvas.height, 0, 0, 1, canvas.height);
  return edge.getImageData(0, 0, 1, canvas.height).data.some((value, place) => place % 4 === 3 && value);
}).map((canvas) => canvas.closest('[aria-label]').getAttribute('aria-label'))
"""
"""Charts in which something is drawn up to the right edge, where a label goes on that has no room."""

CUT = """
[...document.querySelectorAll('.inside *, .chats *, .bar *')].filter((element) => {
  const style = getComputedStyle(element);
  return element.checkVisibility() && element.scrollWidth > element.clientWidth + 1 && style.overflowX === 'hidden'
    && style.textOverflow !== 'ellipsis' && element.clientWidth;
}).map((element) => element.className || element.id)
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 760, 1100, 1400])
async def test_nothing_is_cut_and_everything_can_be_read(browser: Browser, width: int, theme: str) -> None:
    """No sideways scroll, no text that is cut, and a contrast of 4.5 at least, in each width and theme."""
    await browser.resize(width, 900)
    await browser.prefer(theme)
    async with staged(step_freely=True) as stage, opened(browser, stage):
        await say(browser, "hello there, this is a sentence that needs more than one line at any width")
        await browser.until(f"{STATE} === 'done'")
        for part in ("chat", "inside"):
            if width < 1100:
                await browser.click(f"#show-{part}")
            if part == "inside" or width >= 1100:
                await browser.until("document.querySelector('#tree li[data-hash]')")
            assert await browser.get("document.documentElement.scrollWidth") <= width
            assert await browser.get(CONTRAST) == []
            assert await browser.get(CUT) == []
            assert await browser.get(CLIPPED) == []


async def test_the_theme_follows_the_system_until_it_is_chosen(browser: Browser) -> None:
    """The button turns it over, and the choice outlives the page."""
    async with staged(step_freely=True) as stage, opened(browser, stage):
        light = await browser.get(GROUND)
        await browser.prefer("dark")
        await browser.until("document.documentElement.dataset.theme === 'dark'")
        assert await browser.get(GROUND) != light
        await browser.click("#theme")
        assert await browser.get(GROUND) == light
        await browser.run(browser.reload)
        await browser.until("document.getElementById('model').textContent === 'echo'")
        assert await browser.get(GROUND) == light
        await browser.get("localStorage.clear()")


async def test_everything_can_be_done_with_the_keys(browser: Browser) -> None:
    """From the top by Tab, to the reference, the theme, chats, message, options, send, the map; tabs by arrows; the
    focus shows everywhere."""
    async with staged(step_freely=True) as stage, opened(browser, stage):
        seen = []
        for _ in range(9):
            await browser.press(Keys.TAB)
            seen.append(await browser.focused())
            assert await browser.get("getComputedStyle(document.activeElement).outlineStyle") == "solid", seen
        assert seen == [
            "reference",
            "theme",
            "chat-1-tab",
            "New chat",
            "Conversation",
            "Message",
            "Options",
            "Send",
            "Map of the KV blocks. Arrow keys go from block to block, Escape leaves.",
        ]
        await browser.get("document.querySelector('[aria-label=\"New chat\"]').focus()")
        await browser.press(Keys.ENTER)
        await browser.press("hello", Keys.ENTER)
        await browser.until(f"{STATE} === 'done'")
        assert await browser.get(TEXT) == "hello"
        await browser.get("document.getElementById('chat-2-tab').focus()")
        await browser.press(Keys.ARROW_LEFT)
        assert await browser.focused() == "chat-1-tab"
        assert await browser.get("document.getElementById('chat-2').hidden")


async def test_the_reference_is_one_key_away(browser: Browser) -> None:
    """The page of every route and field opens by the link in the bar, without a mouse; it reads well in both themes."""
    async with staged(step_freely=True) as stage, opened(browser, stage):
        await browser.press(Keys.TAB)
        assert await browser.focused() == "reference"
        await browser.press(Keys.ENTER)
        await browser.until("location.pathname === '/ui/docs' && document.querySelector('nav a')")
        for theme in ("light", "dark"):
            await browser.prefer(theme)
            assert await browser.get(CONTRAST) == []


async def test_with_keys_the_page_asks_for_one_and_an_admins_opens_the_live_view(browser: Browser) -> None:
    """A wrong key is refused in the form; an API key opens the chat; an admin key, given later, the inside too."""
    async with staged(step_freely=True, api_key=(KEY,), admin_api_key=(ADMIN,)) as stage:
        await browser.open(PAGE.format(stage.port))
        await browser.type("#key", "wrong", Keys.ENTER)
        await browser.until("document.getElementById('said').textContent === 'The server does not know this key.'")
        await browser.get("document.getElementById('key').value = ''")
        await browser.type("#key", KEY, Keys.ENTER)
        await browser.until("document.getElementById('model')?.textContent === 'echo'")
        await say(browser, "hello")
        await browser.until(f"{STATE} === 'done'")
        await browser.until("document.getElementById('notice').textContent.includes('takes an admin key')")
        browser.console_errors()  # the browser notes the 401s and the 403 there
        await browser.click("#notice button")
        await browser.type("#ask-key", ADMIN, Keys.ENTER)
        await browser.until("document.getElementById('link').dataset.state === 'open'")
        await browser.until("document.querySelector('#tree .words')?.textContent === 'hell'")
        assert await browser.get("Object.keys(localStorage).length") == 0
        await until(lambda: stage.run.hub is not None and stage.run.hub.num_watchers == 1)
        assert ADMIN not in str(await browser.get("document.cookie + document.documentElement.outerHTML"))
        await browser.open("about:blank")
