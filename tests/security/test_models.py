"""A model is data: nothing that comes with one is run, whatever it asks for."""

import json
import pickle
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from triolet.engine.core.errors import InvalidRequest, ModelLoadError
from triolet.model.source import resolve_source
from triolet.model.tokenizer import load_tokenizer
from triolet.model.weights import read_spec, read_weights

from ..model.tiny import CHAT_TEMPLATE, make_model, write_gguf, write_tokenizer

WALK = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
WALKS = [
    WALK,
    "{{ cycler.__init__.__globals__.os.popen('touch canary').read() }}",
    "{{ messages.__class__ }}",
    "{{ (messages | map(attribute='__class__') | list)[0].__base__ }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{% set x = dict.__call__.__func__.__globals__ %}{{ x }}",
    "{{ tojson.__globals__ }}{{ strftime_now.__globals__ }}",
]


class Canary:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model whose every configuration names code, and the code beside it, which leaves a file."""
    place = tmp_path / "model"
    make_model().save_pretrained(place)
    write_tokenizer(place)
    (place / "evil.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w').close()\n")
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((place / name).read_text())
        content["auto_map"] = {
            "AutoConfig": "evil.Config",
            "AutoModelForCausalLM": "evil.Model",
            "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"],
        }
        (place / name).write_text(json.dumps(content))
    return place


def test_code_that_a_model_names_is_never_run(folder: Path) -> None:
    """auto_map in every configuration: the model is read as what it is, or refused; the code stays unread."""
    source = resolve_source(str(folder))
    spec = read_spec(source)
    assert list(read_weights(source, spec))
    with suppress(ModelLoadError):
        load_tokenizer(source)
    assert not (folder.parent / "canary").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused(folder: Path, name: str) -> None:
    """A folder with a .bin alone: refused with the reason, and what is pickled in it never comes to life."""
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Canary(folder.parent / "canary")))
    source = resolve_source(str(folder))
    with pytest.raises(ModelLoadError) as refused:
        list(read_weights(source, read_spec(source)))
    assert "safetensors" in refused.value.message
    assert not (folder.parent / "canary").exists()


def rendered(path: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the template of a GGUF file makes of a message, or what it is refused for."""
    monkeypatch.setattr("tests.model.tiny.CHAT_TEMPLATE", template)
    write_gguf(path)
    tokenizer = load_tokenizer(resolve_source(str(path)))
    try:
        return tokenizer.render([{"role": "user", "content": "Hi"}])
    except InvalidRequest as error:
        return error.message.removeprefix("The model's chat template refused the messages: ")


@pytest.mark.parametrize("template", WALKS)
def test_a_models_template_reaches_nothing(template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GGUF file whose template walks to the interpreter's insides: the sandbox refuses, or it finds nothing there."""
    monkeypatch.chdir(tmp_path)
    said = rendered(tmp_path / "model.gguf", template, monkeypatch)
    assert said in ("", "None") or said.startswith(("access to attribute", "'", "unexpected")), said
    assert " at 0x" not in said
    assert not (tmp_path / "canary").exists()


def test_the_sandbox_is_not_what_stops_an_honest_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file with the usual template renders."""
    assert "Hi" in rendered(tmp_path / "model.gguf", CHAT_TEMPLATE, monkeypatch)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path)
    return path.read_bytes()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@seed(0)
@given(
    places=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4),
    keep=st.floats(0.2, 1),
    in_header=st.booleans(),
)
def test_a_forged_gguf_file_is_read_or_refused(
    gguf_bytes: bytes, places: list[tuple[float, bytes]], keep: float, in_header: bool
) -> None:
    """Counts, lengths, offsets and types overwritten at random: a ModelLoadError or a model, and no other error."""
    data = bytearray(gguf_bytes)
    reach = 400 if in_header else 12_000  # the metadata and the tensors' table come first
    for where, forged in places:
        start = int(where * (reach - 9))
        data[start : start + len(forged)] = forged
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "forged.gguf"
        path.write_bytes(data[: int(keep * len(data))] if keep < 0.5 else data)
        with suppress(ModelLoadError):
            source = resolve_source(str(path))
            for _ in read_weights(source, read_spec(source)):
                pass
