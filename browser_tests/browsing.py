"""A browser, for a test that runs in trio: each of its steps is a call in a worker thread."""

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import trio
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.limits import REAL_LIMIT_S

__all__ = ["Browser", "Keys", "start_chromium"]

T = TypeVar("T")

WAIT_S = REAL_LIMIT_S / 2

UNTIL = """
const done = arguments[arguments.length - 1], given = [...arguments].slice(0, -1);
const condition = new Function(%s);
const look = () => {
  const value = condition(...given);
  if (value) done(value); else requestAnimationFrame(look);
};
look();
"""


def start_chromium() -> Chrome:
    """Debian's, without a window. Says what to install where it is missing."""
    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in found:
        raise RuntimeError("these tests need Chromium: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = str(found[0])
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "window-size=1400,1000"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(str(found[1])))
    driver.set_script_timeout(WAIT_S)
    return driver


class Browser:
    """One window. Every method but `renew` and `console_errors` may be awaited from the event loop."""

    def __init__(self, driver: Chrome) -> None:
        self._driver = driver

    def renew(self) -> None:
        """1400 by 1000 pixels, light, and no memory of other tests."""
        self._driver.get("about:blank")
        self._driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
        self._driver.delete_all_cookies()
        self._resize(1400, 1000)
        self._prefer("light")
        self._driver.get_log("browser")

    def reload(self) -> None:
        self._driver.refresh()

    def console_errors(self) -> list[str]:
        return [
            entry["message"] for entry in self._driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
        ]

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        return await trio.to_thread.run_sync(partial(call, *args))

    async def open(self, url: str) -> None:
        await self.run(self._driver.get, url)

    async def until(self, condition: str, *args: Any) -> Any:
        """The first value of a JavaScript expression that counts as true."""
        script = UNTIL % repr(f"return ({condition})")
        return await self.run(self._driver.execute_async_script, script, *args)

    async def get(self, expression: str, *args: Any) -> Any:
        return await self.run(self._driver.execute_script, f"return ({expression})", *args)

    async def click(self, selector: str) -> None:
        await self.run(lambda: self._driver.find_element(By.CSS_SELECTOR, selector).click())

    async def type(self, selector: str, *keys: str) -> None:
        await self.run(lambda: self._driver.find_element(By.CSS_SELECTOR, selector).send_keys(*keys))

    async def press(self, *keys: str) -> None:
        """To whatever has the focus."""
        await self.run(lambda: self._driver.switch_to.active_element.send_keys(*keys))

    async def hover(self, selector: str, x: int, y: int) -> None:
        """Move the pointer to a place inside an element."""
        box = await self.get(
            f"(({selector!r}, document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})), "
            f"document.querySelector({selector!r}).getBoundingClientRect().toJSON())"
        )
        event = {"type": "mouseMoved", "x": box["x"] + x, "y": box["y"] + y}
        await self.run(self._driver.execute_cdp_cmd, "Input.dispatchMouseEvent", event)

    async def focused(self) -> str:
        """What the focused element is called: its id, else its label, else its text."""
        return str(
            await self.get(
                "document.activeElement.id || document.activeElement.getAttribute('aria-label') || "
                "document.activeElement.textContent"
            )
        )

    async def resize(self, width: int, height: int) -> None:
        await self.run(self._resize, width, height)

    async def prefer(self, scheme: str) -> None:
        """light or dark, as the system would."""
        await self.run(self._prefer, scheme)

    def _resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def _prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
