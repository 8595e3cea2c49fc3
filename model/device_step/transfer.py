"""Numbers on their way between host and device, without waiting for the device.

`upload` may be called while steps are under way: the copy takes its place in the order of the device's work. `download`
takes the tensor as it is at that place, and hands it out when it has arrived.
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Int64Array = npt.NDArray[np.int64]


class Landing(Protocol):
    """Numbers under way to the host."""

    def ready(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> Int64Array:
        """Blocks until they are there; raises what the device raises."""


class Transfers(Protocol):
    """Both ways of one device. Used by the device thread alone."""

    def upload(self, array: npt.NDArray[Any]) -> Tensor:
        """The array on the device. It may be changed as soon as this returns."""

    def download(self, tensor: Tensor) -> Landing:
        """An int64 tensor to the host. Work that is launched later may overwrite it."""


class HostTransfers:
    """The device is the host: everything is copied, and there at once."""

    def upload(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(array))

    def download(self, tensor: Tensor) -> Landing:
        return Landed(tensor.clone().numpy())


class Landed:
    """Numbers that are there."""

    def __init__(self, array: Int64Array) -> None:
        self._array = array

    def ready(self) -> bool:
        return True

    def wait(self) -> Int64Array:
        return self._array


class CudaTransfers:
    """Through page-locked memory. Torch's allocator of it hands a buffer out again when the copies out of it are done,
    so nothing here has to be waited for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def upload(self, array: npt.NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if not array.size:
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def download(self, tensor: Tensor) -> Landing:
        there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.numel() > 0)
        there.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return _CudaLanding(there, event)


class _CudaLanding:
    def __init__(self, there: Tensor, event: torch.cuda.Event) -> None:
        self._there, self._event = there, event

    def ready(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> Int64Array:
        self._event.synchronize()
        return self._there.numpy()
