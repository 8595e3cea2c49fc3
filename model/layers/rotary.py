"""Rotary positions: the angle by which a position turns each pair of a head's dimensions.

The scaling types are those of `transformers.modeling_rope_utils` (default, linear, dynamic, yarn, longrope, llama3,
proportional), and the frequencies are equal to its own.

Two types, dynamic and longrope, choose their frequencies by the length of the sequence. Here they are chosen once, for
the longest sequence the engine admits (`max_model_len`), because keys stay in the cache: were the choice to follow the
length reached so far, a sequence would hold keys turned by different frequencies, and its tokens would depend on how
its prompt was cut into chunks and on what the prefix cache held. With `max_model_len` within the model's original
length both are exactly what transformers computes at every length.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...engine.core.errors import ModelLoadError
from ..spec import ModelSpec


class Rotary:
    """The rotation of one model: `tables` once a step, then `rotate` in every layer."""

    def __init__(
        self, spec: ModelSpec, *, max_model_len: int | None = None, device: torch.device | str = "cpu"
    ) -> None:
        frequencies, self.attention_scaling = rope_frequencies(spec, max_model_len=max_model_len)
        self.frequencies = frequencies.to(device)
        """Radians per position of each pair, float32 `[rotary_dim / 2]`."""
        self.rotary_dim = 2 * frequencies.numel()
        self._whole_head = self.rotary_dim == spec.head_dim

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines `[num_tokens, 1, rotary_dim]` for positions `[num_tokens]`, computed in float32.

        The sines of the first half carry the minus sign, so that a rotation is `x * cos + roll(x, half) * sin`.
        """
        angles = positions[:, None].to(torch.float32) * self.frequencies
        cos = angles.cos() * self.attention_scaling
        sin = angles.sin() * self.attention_scaling
        return torch.cat((cos, cos), -1).to(dtype)[:, None], torch.cat((-sin, sin), -1).to(dtype)[:, None]

    def rotate(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Turn heads `[num_tokens, num_heads, head_dim]`; dimensions past `rotary_dim` stay as they are."""
        cos, sin = tables
        if self._whole_head:
            return torch.addcmul(x * cos, x.roll(self.rotary_dim // 2, -1), sin)
        turned = x[..., : self.rotary_dim]
        turned = torch.addcmul(turned * cos, turned.roll(self.rotary_dim // 2, -1), sin)
        return torch.cat((turned, x[..., self.rotary_dim :]), -1)


def rope_frequencies(spec: ModelSpec, *, max_model_len: int | None = None) -> tuple[Tensor, float]:
    """The frequencies of a model's rotary pairs (float32) and the factor on its cosines and sines.

    `max_model_len` is the longest sequence to be run, by default the model's own. Raises `ModelLoadError` for an
    unknown scaling type or a missing field, naming it.
    """
    parameters = spec.rope_parameters
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in _TYPES:
        raise ModelLoadError(f"rope_scaling type {kind!r} is not known; known are {', '.join(sorted(_TYPES))}.")
    try:
        return _TYPES[kind](spec, parameters, max_model_len or spec.max_position_embeddings)
    except KeyError as error:
        raise ModelLoadError(f"rope_scaling of type {kind!r} lacks the field {error.args[0]!r}.") from None
    except TypeError as error:
        raise ModelLoadError(f"rope_scaling of type {kind!r} has a field of the wrong type: {error}.") from None


def _rotary_dim(spec: ModelSpec) -> int:
    return int(spec.head_dim * spec.rope_parameters.get("partial_rotary_factor", spec.partial_rotary_factor))


def _theta(spec: ModelSpec) -> float:
    return float(spec.rope_parameters.get("rope_theta") or spec.rope_theta)


def _exponents(dim: int) -> Tensor:
    return torch.arange(0, dim, 2, dtype=torch.float32) / dim


def _plain(spec: ModelSpec, theta: float | None = None) -> Tensor:
    return 1.0 / ((theta or _theta(spec)) ** _exponents(_rotary_dim(spec)))


def _default(spec: ModelSpec, parameters: Mapping[str, Any], length: int) -> tuple[Tensor, float]:
    return _plain(spec), 1.0


def _linear(spec: ModelSpec, parameters: Mapping[str, Any], length: int) -> tuple[Tensor, float]:
    return _plain(spec) / parameters["factor"], 1.0


def _dynamic(spec: ModelSpec, parameters: Mapping[str, Any], length: int) -> tuple[Tensor, float]:
    """NTK-aware: the base grows with the part of the length that exceeds what the model was trained for."""
    dim, factor, original = _rotary_dim(spec), parameters["factor"], spec.max_position_embeddings
    stretch = (factor * max(length, original) / original) - (factor - 1)
    return _plain(spec, _theta(spec) * stretch ** (dim / (dim - 2))), 1.0


def _yarn(spec: ModelSpec, parameters: Mapping[str, Any], length: int) -> tuple[Tensor, float]:
    """https://arxiv.org/abs/2309.00071: slow pairs are interpolated, fast ones kept, a ramp between them."""
    dim, theta = _rotary_dim(spec), _theta(spec)
    original = parameters.get("original_max_position_embeddings") or spec.max_position_embeddings
    factor = parameters["factor"]
    if factor is None:
        factor = spec.max_position_embeddings / original

    def pair_of(rotations: float) -> float:
        """The pair that turns this many times over the original length."""
        return (dim * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(theta))

    low, high = pair_of(parameters.get("beta_fast") or 32), pair_of(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a ramp of no width would divide by zero
    keep = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    wavelengths = theta ** _exponents(dim)
    frequencies = 1.0 / (factor * wavelengths) * (1 - keep) + 1.0 / wavelengths * keep
    return frequencies, _yarn_scaling(parameters, factor)


def _yarn_scaling(parameters: Mapping[str, Any], factor: float) -> float:
    if (given := parameters.get("attention_factor")) is not None:
        return float(given)

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    over, under = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return mscale(over) / mscale(under) if over and under else mscale(1.0)


def _longrope(spec: ModelSpec, parameters: Mapping[str, Any], length: int) -> tuple[Tensor, float]:
    """https://arxiv.org/abs/2402.13753: one searched factor for each pair, a set for short and a set for long."""
    original = parameters.get("original_max_position_embeddings") or spec.max_position_embeddings
    which = "long_factor" if length > original else "short_factor"
    factors = torch.tensor(parameters[which], dtype=torch.float32)
    exponents = _exponents(_rotary_dim(spec))
    if factors.shape != exponents.shape:
        raise ModelLoadError(f"rope_scaling {which} has {factors.numel()} numbers; the model needs {len(exponents)}.")
    scaling = parameters.get("attention_factor")
    if scaling is None:
        factor = parameters.get("factor") or spec.max_position_embeddings / original
        scaling = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return 1.0 / (factors * _theta(spec) ** exponents), float(scaling)


def _llama3(spec: ModelSpec, parameters: Mapping[str, Any], length: int) -> tuple[Tensor, float]:
    """Llama 3.1: wavelengths past the original length are stretched by `factor`, short ones kept, a ramp between."""
    frequencies = _plain(spec)
    factor, slow, fast = parameters["factor"], parameters["low_freq_factor"], parameters["high_freq_factor"]
    original = parameters.get("original_max_position_embeddings") or spec.max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    stretched = torch.where(wavelengths > original / slow, frequencies / factor, frequencies)
    smooth = (original / wavelengths - slow) / (fast - slow)
    between = (1 - smooth) * stretched / factor + smooth * stretched
    in_ramp = (wavelengths >= original / fast) & (wavelengths <= original / slow)
    return torch.where(in_ramp, between, stretched), 1.0


def _proportional(spec: ModelSpec, parameters: Mapping[str, Any], length: int) -> tuple[Tensor, float]:
    """A share of the pairs turns, with exponents counted over the whole head; the others stand still (frequency 0)."""
    share = parameters.get("partial_rotary_factor", spec.partial_rotary_factor)
    turning = int(share * spec.head_dim // 2)
    exponents = torch.arange(0, 2 * turning, 2, dtype=torch.float32) / spec.head_dim
    still = torch.zeros(spec.head_dim // 2 - turning)
    return torch.cat((1.0 / _theta(spec) ** exponents, still)) / parameters.get("factor", 1.0), 1.0


_TYPES: dict[str, Callable[[ModelSpec, Mapping[str, Any], int], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
