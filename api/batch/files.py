"""The files of a batch: requests read line by line, rows appended to what an earlier run has left.

A row is one write of a whole line to a file opened for appending, so that a process that is killed leaves at most its
last line torn; the next run takes that off. The output is locked while a run writes to it. Imports the standard library
and the rows.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from ...engine.core.errors import ConfigurationError
from .rows import BadLine, Request, Row, parse_line

LINE_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of a line of the input: past it the line is refused, and never held as a whole."""

_BOM = b"\xef\xbb\xbf"
_ROW_BEGINS = b'{"id":"batch_req_'
"""A torn line that does not begin so is not ours to take off."""


def check_files(input_file: Path, output_file: Path) -> None:
    """Before anything is made or changed: the input is there, and is not the output. Raises ConfigurationError."""
    for path, flag in ((input_file, "--input-file"), (output_file, "--output-file")):
        if path.exists() and not (path.is_file() or path.is_dir()):  # a folder is refused when it is opened
            raise ConfigurationError(f"{flag} {path} must be a file: it is read more than once.")
    _opened(input_file, "--input-file").close()
    if output_file.exists() and output_file.samefile(input_file):
        raise ConfigurationError("--output-file must not be the --input-file.")


def read_lines(path: Path) -> Iterator[Request | BadLine]:
    """The lines of the input that are not blank, in their order; a custom_id that came before is refused.

    Raises ConfigurationError.
    """
    known: set[str] = set()
    with _opened(path, "--input-file") as file:
        number = 0
        while line := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(line) > LINE_BYTES_MAX:
                while not line.endswith(b"\n") and (line := file.readline(LINE_BYTES_MAX)):
                    pass
                message = f"Line {number}: it is longer than {LINE_BYTES_MAX} bytes."
                yield BadLine(number=number, custom_id=None, message=message)
                continue
            line = line.removeprefix(_BOM) if number == 1 else line
            if not line.strip():
                continue
            parsed = parse_line(number, line)
            if isinstance(parsed, Request):
                if parsed.custom_id in known:
                    message = f"Line {number}: custom_id {parsed.custom_id[:128]!r} stands on an earlier line too."
                    parsed = BadLine(number=number, custom_id=parsed.custom_id, message=message)
                else:
                    known.add(parsed.custom_id)
            yield parsed


def _opened(path: Path, flag: str) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigurationError(f"{flag} {path}: {error.strerror or error}.") from None


class OutputFile:
    """The rows. Opening it reads what is there; raises ConfigurationError for a file that holds something else."""

    def __init__(self, path: Path, *, drop_failed: bool = False) -> None:
        self._path = path
        self.num_answered = 0
        """Rows with an answer of status 200."""
        self.num_failed = 0
        self.num_found = 0
        """Rows that were there."""
        self._ids: set[str] = set()
        self._lines: set[int] = set()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigurationError(f"--output-file {path}: {error.strerror or error}.") from None
        try:
            self._lock()
            kept = self._take_over(drop_failed)
            if kept is not None:
                self._replace(kept)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """What was written is on the disk. Idempotent."""
        if self._file >= 0:
            file, self._file = self._file, -1
            with suppress(OSError):  # a file system may have no such thing
                os.fsync(file)
            os.close(file)

    def has(self, line: Request | BadLine) -> bool:
        """Whether a row about it is there: about the line itself where it is a bad one, about its request otherwise."""
        return line.number in self._lines if isinstance(line, BadLine) else line.custom_id in self._ids

    def append(self, row: Row) -> None:
        """Raises OSError when the disk does not take it; what it took of it is taken off again."""
        before_bytes = os.fstat(self._file).st_size
        try:
            _write(self._file, row.encode())
        except OSError:
            os.ftruncate(self._file, before_bytes)
            raise
        self._count(row)

    def _count(self, row: Row) -> None:
        self.num_failed += row.failed
        self.num_answered += not row.failed
        if row.error is not None and row.error.line is not None:
            self._lines.add(row.error.line)
        elif row.custom_id is not None:
            self._ids.add(row.custom_id)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(f"--output-file {self._path}: another run is writing to it.") from None

    def _take_over(self, drop_failed: bool) -> list[bytes] | None:
        """Count the rows that are there, and cut off a torn one. The lines to keep, where some are to go."""
        kept: list[bytes] = []
        dropped = False
        unended = False
        whole_bytes = 0
        with _opened(self._path, "--output-file") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = msgspec.json.decode(line, type=Row)
                except msgspec.DecodeError:
                    torn = line.startswith(_ROW_BEGINS) or _ROW_BEGINS.startswith(line)
                    if torn and not line.endswith(b"\n"):
                        os.ftruncate(self._file, whole_bytes)
                        break
                    message = f"--output-file {self._path}: line {number} is no row of a batch; name another file."
                    raise ConfigurationError(message) from None
                whole_bytes += len(line)
                unended = not line.endswith(b"\n")
                line += b"\n" * unended
                if drop_failed and row.failed:
                    dropped = True
                    continue
                if drop_failed:
                    kept.append(line)
                self._count(row)
                self.num_found += 1
        if unended:
            os.write(self._file, b"\n")
        return kept if dropped else None

    def _replace(self, lines: list[bytes]) -> None:
        """Put a file with these lines in the place of the old one, at once: killed in between, either is there."""
        path = self._path.resolve()
        beside = path.with_name(path.name + ".new")
        file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
        old, self._file = self._file, file
        try:
            self._lock()
            os.fchmod(file, stat.S_IMODE(os.fstat(old).st_mode))
            for line in lines:
                _write(file, line)
            os.fsync(file)
            os.replace(beside, path)
        finally:
            os.close(old)


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
