"""Profiles of Hypothesis, and `--allocator`.

`dev` (the default, under a minute), `ci` (under four) and `nightly` (long) are chosen with `--hypothesis-profile NAME`
or with the environment variable HYPOTHESIS_PROFILE.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings

from . import adapter

# The machines take as long as they take: a deadline for one example would only make a slow machine fail.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("dev", _patient, max_examples=100, stateful_step_count=40)
settings.register_profile("ci", _patient, max_examples=300, stateful_step_count=60)
settings.register_profile("nightly", _patient, max_examples=40_000, stateful_step_count=120)
# For a mutation run: the first failure is enough, nobody reads the shrunk program.
settings.register_profile(
    "kill", _patient, max_examples=100, stateful_step_count=40, phases=[Phase.generate], database=None
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--allocator",
        metavar="PACKAGE.MODULE:ADAPTER",
        help="check the laws K1 to K14 against another allocator; see docs/allocator-spec.md",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "allocator: a law that holds for any allocator, checked through the adapter")
    path = config.getoption("--allocator")
    if path:
        try:
            adapter.choose(path)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--allocator`, only the laws that go through the adapter; tests that need what it lacks are left out."""
    if not config.getoption("--allocator"):
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("allocator")
        wanted = marker is not None and all(adapter.supports(feature) for feature in marker.args)
        (kept if wanted else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much was tried, and the laws that the adapter does not offer."""
    for machine, count in adapter.operations.items():
        terminalreporter.line(f"{machine}: {count:,} operations, every law checked after each")
    missing = [text for feature, text in adapter.FEATURES.items() if not adapter.supports(feature)]
    if missing:
        terminalreporter.section("laws not checked: the adapter does not offer them")
        for text in missing:
            terminalreporter.line(text)
