"""When the native kernels run a model, and what is said when they cannot."""

import logging
from typing import Any

import attrs
import pytest
import torch

from tests.model.native.test_kv import SPEC
from triolet.engine.core.errors import ConfigurationError
from triolet.model.native.build import NativeUnavailable
from triolet.model.native.choose import choose_native
from triolet.model.native.library import Format

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@attrs.frozen
class Kernels:
    """A library of a machine that is fast in some formats."""

    fast: tuple[Format, ...]
    description: str = "portable"

    def is_fast(self, format: Format) -> bool:
        return format in self.fast


def choose(*, fast: tuple[Format, ...] = tuple(Format), fails: str | None = None, **fields: Any) -> Any:
    def load(progress: object) -> Any:
        if fails is not None:
            raise NativeUnavailable(fails)
        return Kernels(fast)

    settings = {"device": CPU, "dtype": torch.bfloat16, "block_size": 16, "load": load, **fields}
    return choose_native(settings.pop("spec", SPEC), **settings)


@pytest.mark.parametrize(
    ("fields", "formats"),
    [
        ({}, (Format.BFLOAT16, Format.BFLOAT16)),
        ({"dtype": torch.float32}, (Format.FLOAT32, Format.FLOAT32)),
        ({"quantization": "int8"}, (Format.INT8, Format.BFLOAT16)),
        ({"quantization": "int4", "kv_cache_dtype": "int8"}, (Format.INT4, Format.INT8)),
        ({"kv_cache_dtype": "int8", "backend": "native"}, (Format.BFLOAT16, Format.INT8)),
    ],
)
def test_formats_follow_the_flags(fields: dict[str, Any], formats: tuple[Format, Format]) -> None:
    """Of the weights and of the cache."""
    choice = choose(**fields)
    assert (choice.weights, choice.kv) == formats


def test_another_backend_is_nothing_native() -> None:
    """Its name is for the registry, known or not; nothing is compiled."""
    assert choose(backend="torch", fails="never asked") is None
    assert choose(backend="nonsense") is None


def test_kernels_that_are_not_known_to_be_faster_wait_to_be_asked(caplog: pytest.LogCaptureFixture) -> None:
    """On a machine without the instructions torch computes; `--attention-backend native` overrides that."""
    caplog.set_level(logging.INFO)
    assert choose(fast=(Format.FLOAT32,)) is None
    assert "native kernels, which are faster, are not used: as portable they are not known to be faster" in caplog.text
    assert choose(fast=(), backend="native").weights is Format.BFLOAT16


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"fails": "no C++ compiler was found"}, "no C++ compiler was found"),
        ({"block_size": 8}, "--block-size 8 is not a multiple of 16"),
        ({"spec": attrs.evolve(SPEC, head_dim=24)}, "its head size 24 is not a multiple of 16"),
        ({"dtype": torch.float16}, "they do not compute in float16; set --dtype bfloat16"),
    ],
)
def test_what_keeps_them_from_running_is_one_line(
    caplog: pytest.LogCaptureFixture, fields: dict[str, Any], reason: str
) -> None:
    """In the log where nobody asked for them; an error that names the flag where somebody did."""
    caplog.set_level(logging.INFO)
    assert choose(**fields) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"torch computes the steps; the native kernels, which are faster, are not used: {reason}"
    ]
    for asked, flag in (
        ({"backend": "native"}, "--attention-backend native"),
        ({"quantization": "int8"}, "--quantization int8"),
        ({"kv_cache_dtype": "int8"}, "--kv-cache-dtype int8"),
    ):
        with pytest.raises(ConfigurationError) as error:
            choose(**fields, **asked)
        assert str(error.value) == f"{flag} needs the native CPU kernels, but {reason}."


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"device": GPU, "quantization": "int4"},
            "--quantization int4 needs the native CPU kernels, but the model runs",
        ),
        ({"backend": "torch", "quantization": "int8"}, "but --attention-backend is torch"),
        ({"dtype": torch.float32, "quantization": "int8"}, "with quantization they compute in bfloat16"),
        ({"dtype": torch.float32, "kv_cache_dtype": "int8"}, "set --dtype bfloat16"),
    ],
)
def test_flags_that_exclude_each_other_are_an_error(fields: dict[str, Any], message: str) -> None:
    """And not silently something else."""
    with pytest.raises(ConfigurationError) as error:
        choose(**fields)
    assert message in str(error.value)


def test_a_gpu_is_nothing_native(caplog: pytest.LogCaptureFixture) -> None:
    """Without a word: nobody expects them there."""
    assert choose(device=GPU) is None
    assert not caplog.records
