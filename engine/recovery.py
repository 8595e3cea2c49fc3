"""What becomes of a failed device, and of the requests that ran on it.

Imports the core and the device's protocol; knows no time. Three kinds of failure:

- a step raised, and the device still computes: its requests fail, each with an error of its own, the others go on;
- a step ran out of memory: steps become smaller, and everyone starts anew; at the smallest the requests fail;
- the device is gone: with a new one everyone who ran starts anew where it was, and no client notices.

A device that goes again and again ends the engine, and so does an AssertionError on it, which is our bug.
"""

import logging

import attrs

from .core.scheduler import Scheduler
from .device import Device, DeviceFailed, DeviceLost

log = logging.getLogger(__name__)

STEPS_OF_PROGRESS = 16
"""A loss after fewer steps than this counts as in a row with the one before: whatever killed the device may be there
still, a few prompts' steps further on."""


class Recovery:
    """One device's, for the scheduler loop. `restore` and then `settle`, with no plan in between."""

    def __init__(self, scheduler: Scheduler, device: Device, *, max_losses_in_a_row: int) -> None:
        self._scheduler = scheduler
        self._device = device
        self._max_losses = max_losses_in_a_row
        self._losses = 0
        self._steps_since_loss = 0
        self.num_restarts = 0
        """Counter: devices that took the place of one that was lost."""

    def landed(self) -> None:
        """A step went well."""
        self._steps_since_loss += 1

    async def restore(self, failure: DeviceFailed) -> bool:
        """Make the device ready for a first plan. False: it is a new one.

        Raises what ends the engine: DeviceFailed for a device that does not answer, DeviceLost for one loss too many,
        StartError where a new one cannot start.
        """
        if failure.kind == AssertionError.__name__:
            raise failure
        while True:
            if isinstance(failure, DeviceLost):
                self._count(failure)
            else:
                log.error("%s", failure.message, exc_info=failure.__cause__)
            try:
                kept = await self._device.restore()
            except DeviceLost as lost:
                failure = lost
            else:
                break
        if not kept:
            self.num_restarts += 1
            log.warning("the runner process has been replaced, for the %d. time", self.num_restarts)
        return kept

    def settle(self, failure: DeviceFailed, *, kept: bool) -> None:
        """Say to the scheduler what came of it. `kept`: what `restore` gave."""
        if not kept:
            self._scheduler.requeue(keep_cache=False)
        elif failure.out_of_memory and self._lower_budget():
            self._scheduler.requeue(keep_cache=True)
        else:
            self._scheduler.fail_running(failure.message[0].upper() + failure.message[1:] + ".")

    def _count(self, lost: DeviceLost) -> None:
        if self._steps_since_loss >= STEPS_OF_PROGRESS:
            self._losses = 0
        self._steps_since_loss = 0
        self._losses += 1
        log.error("%s", lost.message)
        if self._losses > self._max_losses:
            raise DeviceLost(f"{lost.kind}; {self._losses} times in a row") from lost

    def _lower_budget(self) -> bool:
        """Halve the tokens of a step, as far as every sequence may still have one. False: they are that few."""
        limits = self._scheduler.config
        num_tokens = max(limits.max_num_batched_tokens // 2, limits.max_num_seqs)
        if num_tokens == limits.max_num_batched_tokens:
            return False
        log.warning("a step ran out of memory: from now on one has at most %d tokens", num_tokens)
        self._scheduler.set_limits(attrs.evolve(limits, max_num_batched_tokens=num_tokens))
        return True
