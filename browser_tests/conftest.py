"""The page in real Chromium, driven through chromium's own driver. `bash .ci/run` installs both (Debian's packages
chromium and chromium-driver); `pytest browser_tests` runs these alone, and `pytest` without a name leaves them out.

Nothing here sleeps or polls a clock: a condition is looked at in the page, at each of its frames.
"""

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from tests.conftest import pytest_pyfunc_call as pytest_pyfunc_call

from .browsing import Browser, start_chromium


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chrome]:
    """One process for all tests."""
    driver = start_chromium()
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Chrome) -> Iterator[Browser]:
    """A window with nothing of the tests before it. Its console must have had no error."""
    browser = Browser(chromium)
    browser.renew()
    yield browser
    chromium.get("about:blank")
    assert browser.console_errors() == []
