"""The whole surface, fuzzed from our own OpenAPI document: no 5xx, and the engine is alive after it.

The server runs under `python -O`, in a process of its own, and checks its laws when it ends. The examples are the same
in every run (one seed); their number bounds the time.
"""

import json
from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode

from triolet.api.openapi import OPERATIONS, Operation, document

from ..limits import REAL_LIMIT_S
from .server import Running, running

EXAMPLES = 40
"""For each route and each mode: some 15 s in all on 2 busy cores."""

STATUSES = {200, 400, 404, 405, 409}

CASES = [
    (operation, mode)
    for operation in OPERATIONS
    for mode in GenerationMode
    if operation.body is not None or mode is GenerationMode.POSITIVE  # without a body nothing can be broken
    if operation.answers != "text/event-stream"  # it has no end
]

KEY = "fuzz-key"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running("-O", api_key=(KEY,)) as server:
        yield server


@pytest.mark.parametrize(("operation", "mode"), CASES, ids=[f"{case.path}-{mode}" for case, mode in CASES])
def test_no_request_meets_an_error_of_ours(server: Running, operation: Operation, mode: GenerationMode) -> None:
    """Valid and broken bodies on every route: a status of the list, errors in one shape, and /health stays 200."""
    schema = schemathesis.openapi.from_dict(json.loads(document("9.9")))
    target = schema[operation.path][operation.method.upper()]

    @seed(0)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=target.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        response = case.call(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=REAL_LIMIT_S)
        assert response.status_code in STATUSES, (response.status_code, response.text, case.as_curl_command())
        if response.status_code != 200 and case.method != "HEAD":
            assert response.json().keys() - {"type"} == {"error"}

    ask()
    assert httpx.get(f"{server.url}/health", trust_env=False, timeout=REAL_LIMIT_S).status_code == 200
