"""The quick routes: models, health, version, the tokenizer, and what is no route at all."""

from typing import Any

import pytest

from .fake_engine import FakeEngine
from .rig import error_of, serving


async def test_models_are_listed_and_found_by_name() -> None:
    """GET /v1/models has every served name; /v1/models/{id} has one, also where it contains a slash."""
    async with serving(served_model_name=("main", "owner/other")) as rig:
        body = (await rig.client.get("/v1/models")).json()
        assert body["object"] == "list"
        assert [card["id"] for card in body["data"]] == ["main", "owner/other"]
        card = (await rig.client.get("/v1/models/owner/other")).json()
        assert card == body["data"][1]
        assert card["object"] == "model"
        assert (card["max_model_len"], card["root"]) == (4096, "fake")
        response = await rig.post("/v1/completions", {"prompt": "a", "model": "owner/other"})
        assert response.json()["model"] == "owner/other"
        assert (await rig.post("/v1/completions", {"prompt": "a"})).json()["model"] == "main"


async def test_an_unknown_model_is_a_404() -> None:
    """The error names the model that was asked for and those that are served."""
    async with serving() as rig:
        response = await rig.client.get("/v1/models/gpt-4")
        assert response.status_code == 404
        error = error_of(response)
        assert error["code"] == "model_not_found"
        assert error["message"] == "The model `gpt-4` does not exist here; this server has `fake`."
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": []})):
            response = await rig.post(path, {**body, "model": "gpt-4"})
            assert response.status_code == 404


async def test_health_follows_the_engine() -> None:
    """200 while it works; 503 with the reason when it does not."""
    async with serving() as rig:
        response = await rig.client.get("/health")
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
        rig.engine.health = "The device thread has died."
        response = await rig.client.get("/health")
        assert response.status_code == 503
        assert error_of(response)["message"] == "The device thread has died."
        response = await rig.post("/v1/completions", {"prompt": "a"})
        assert response.status_code == 503
        assert error_of(response)["code"] == "engine_dead"
        rig.engine.health = None


async def test_the_version_is_shown() -> None:
    """GET /version."""
    async with serving() as rig:
        assert (await rig.client.get("/version")).json() == {"version": "9.9"}


async def test_text_becomes_tokens_and_back() -> None:
    """/tokenize takes a prompt or messages, with or without what the tokenizer adds; /detokenize is the way back.
    /tokenizer_info names the special tokens."""
    async with serving() as rig:
        body = (await rig.post("/tokenize", {"prompt": "ab"})).json()
        assert body == {"count": 3, "max_model_len": 4096, "tokens": [ord(letter) for letter in "^ab"]}
        body = (await rig.post("/tokenize", {"prompt": "ab", "add_special_tokens": False})).json()
        assert body["tokens"] == [97, 98]
        messages = [{"role": "user", "content": "x"}]
        body = (await rig.post("/tokenize", {"messages": messages, "add_generation_prompt": False})).json()
        back = (await rig.post("/detokenize", {"tokens": body["tokens"]})).json()
        assert (await rig.client.get("/tokenizer_info")).json() == {"model_max_length": 4096, "eos_token": "$"}
        assert back == {"prompt": "<user>x"}


BAD = [
    ("/tokenize", {}, "prompt", "Give either prompt or messages."),
    ("/tokenize", {"prompt": "a", "messages": []}, "prompt", "Give either prompt or messages."),
    ("/tokenize", {"messages": []}, "messages", "messages must hold at least one message."),
    ("/tokenize", {"prompt": 3}, "prompt", "prompt is malformed: expected `str | null`, got `int`."),
    ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens", "add_special_tokens is malformed"),
    ("/detokenize", {}, "tokens", "tokens is required."),
    ("/detokenize", {"tokens": "a"}, "tokens", "tokens is malformed"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]", "tokens[0] is malformed: expected `int` >= 0."),
    ("/detokenize", {"tokens": [2**70]}, "tokens[0]", "tokens[0] is malformed"),
    ("/detokenize", {"tokens": [5000]}, "tokens", "5000 is not in the vocabulary."),
    ("/detokenize", {"tokens": [1] * 4097}, "tokens", "tokens may hold at most 4096 token ids, not 4097."),
]


@pytest.mark.parametrize(("path", "body", "param", "message"), BAD)
async def test_a_mistake_in_a_tokenizer_route_names_the_field(
    path: str, body: dict[str, Any], param: str, message: str
) -> None:
    """400, with the field."""
    async with serving() as rig:
        response = await rig.post(path, body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["message"].startswith(message)
    assert error["param"] == param


async def test_many_tokens_are_turned_into_text_all_the_same() -> None:
    """A long list takes the way through a worker thread."""
    async with serving(FakeEngine(max_model_len=5000)) as rig:
        assert (await rig.post("/detokenize", {"tokens": [97] * 5000})).json() == {"prompt": "a" * 5000}


@pytest.mark.parametrize("path", ["/v1/score", "/", "/nothing", "/v1", "/v1/chat", "/v1/completions/x", "/v1/models/"])
async def test_an_unknown_path_is_a_404_in_the_usual_shape(path: str) -> None:
    """Whatever the method is."""
    async with serving() as rig:
        for method in ("GET", "POST"):
            response = await rig.client.request(method, f"{rig.url}{path}")
            assert response.status_code == 404
            error = error_of(response)
            assert error["code"] == "not_found"
            assert error["message"] == f"There is no route {path}."


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("GET", "/tokenize", "OPTIONS, POST"),
        ("POST", "/v1/models", "GET, HEAD, OPTIONS"),
        ("PUT", "/health", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_is_a_405_that_says_the_right_ones(method: str, path: str, allow: str) -> None:
    """In the usual shape, with the Allow header."""
    async with serving() as rig:
        response = await rig.client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allow
    assert error_of(response)["message"] == f"{path} answers {allow}, not {method}."


async def test_an_error_of_our_own_in_a_quick_route_is_a_500() -> None:
    """The text is fixed, and says nothing of the inside."""
    async with serving() as rig:

        def broken(tokens: object) -> str:
            raise ZeroDivisionError("/home/secret")

        rig.engine.tokenizer.decode = broken  # type: ignore[method-assign]
        response = await rig.post("/detokenize", {"tokens": [1]})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert error_of(response)["type"] == "server_error"
