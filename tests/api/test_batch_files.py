"""The files of a batch: what a line must be, and what an output keeps when its writer is killed."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from triolet.api.batch import files
from triolet.api.batch.files import OutputFile, check_files, read_lines
from triolet.api.batch.rows import BadLine, Request, answered, num_tokens, parse_line, refused, unanswered
from triolet.engine.core.errors import ConfigurationError


def line(custom_id: Any = "a", method: Any = "POST", url: Any = "/v1/completions", body: Any = None) -> bytes:
    fields = {"custom_id": custom_id, "method": method, "url": url, "body": {"prompt": "x"} if body is None else body}
    return json.dumps(fields).encode()


def request(custom_id: str, number: int = 1) -> Request:
    found = parse_line(number, line(custom_id))
    assert isinstance(found, Request)
    return found


def row_of(custom_id: str, status: int = 200) -> Any:
    return answered(request(custom_id), status=status, request_id="r", body=b'{"x": 1}')


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


def test_a_line_is_carried_as_it_stands() -> None:
    """Its body goes to the server byte for byte."""
    found = parse_line(3, b'{"custom_id":"\\u00e9","method":"POST","url":"/v1/embeddings","body": {"n":  1.50} ,"x":0}')
    assert found == Request(number=3, custom_id="é", url="/v1/embeddings", body=b'{"n":  1.50}')


BAD_LINES = [
    (b"\xff", "this is no JSON object"),
    (b"[1]", "this is no JSON object"),
    (b'{"custom_id": "a"', "this is no JSON object"),
    (line(custom_id=""), "custom_id must be a text that is not empty."),
    (line(custom_id=1), "custom_id must be a text that is not empty."),
    (line(method="GET"), "method must be POST."),
    (line(url="/v1/models"), "url must be one of /v1/chat/completions, /v1/completions, /v1/embeddings."),
    (line(body=[1]), "body must be a JSON object."),
    (line(body={"stream": True}), "body.stream must not be true"),
    (b'{"custom_id": "a", "method": "POST", "url": "/v1/completions"}', "body must be a JSON object."),
]


@pytest.mark.parametrize(("bad", "message"), BAD_LINES)
def test_a_bad_line_is_a_row_with_its_number(bad: bytes, message: str) -> None:
    """And with its custom_id, where one can be read."""
    found = parse_line(7, bad)
    assert isinstance(found, BadLine)
    assert found.message.startswith(f"Line 7: {message}")
    row = json.loads(refused(found).encode())
    assert row["error"] == {"code": "invalid_line", "message": found.message, "line": 7}
    assert row["response"] is None
    assert row["custom_id"] == found.custom_id == ("a" if b'"a"' in bad and b"POST" in bad else row["custom_id"])


def test_a_row_has_openais_fields() -> None:
    """An answer of any status is a response; what never came is an error."""
    row = json.loads(row_of("a", 400).encode())
    assert row.pop("id").startswith("batch_req_")
    assert row == {
        "custom_id": "a",
        "response": {"status_code": 400, "request_id": "r", "body": {"x": 1}},
        "error": None,
    }
    row = json.loads(unanswered(request("a"), "gone").encode())
    assert (row["response"], row["error"]) == (None, {"code": "connection_failed", "message": "gone"})


def test_a_row_is_one_line_whatever_the_server_sent() -> None:
    """JSON on several lines is joined, and a proxy's page becomes a text."""
    for body, found in ((b'{\n "a":\r\n "x\\ny"}', {"a": "x\ny"}), (b"<p>\n\xff</p>", "<p>\n\ufffd</p>")):
        encoded = answered(request("a"), status=502, request_id=None, body=body).encode()
        assert encoded.count(b"\n") == 1
        assert json.loads(encoded)["response"]["body"] == found


def test_tokens_are_counted_where_the_answer_tells_them() -> None:
    """For the progress alone."""
    counted = answered(request("a"), status=200, request_id=None, body=b'{"usage": {"completion_tokens": 7}}')
    assert num_tokens(counted) == 7
    assert num_tokens(row_of("a")) == num_tokens(unanswered(request("a"), "")) == 0
    assert num_tokens(answered(request("a"), status=200, request_id=None, body=b"[]")) == 0


def test_lines_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank ones are passed over, a mark of the byte order too; a second custom_id and an endless line are refused."""
    monkeypatch.setattr(files, "LINE_BYTES_MAX", 200)
    path = tmp_path / "in"
    path.write_bytes(
        b"\xef\xbb\xbf"
        + line("a")
        + b"\n\r\n"
        + line("b")
        + b"\r\n"
        + b"x" * 999
        + b"\n"
        + line("a")
        + b"\n"
        + line("c")
    )
    found = list(read_lines(path))
    assert [each.number for each in found] == [1, 3, 4, 5, 6]
    assert [each.custom_id for each in found] == ["a", "b", None, "a", "c"]
    bad = [each.message for each in found if isinstance(each, BadLine)]
    assert bad == ["Line 4: it is longer than 200 bytes.", "Line 5: custom_id 'a' stands on an earlier line too."]


def test_what_an_earlier_run_has_written_is_known(tmp_path: Path) -> None:
    """A request by its custom_id, a bad line by its number; failed ones count as done."""
    path = tmp_path / "out"
    twice = BadLine(number=5, custom_id="d", message="Line 5: twice")
    with OutputFile(path) as output:
        for row in (row_of("a"), row_of("b", 400), unanswered(request("c"), "gone"), refused(twice)):
            output.append(row)
        assert (output.num_answered, output.num_failed, output.num_found) == (1, 3, 0)
    with OutputFile(path) as output:
        assert (output.num_answered, output.num_failed, output.num_found) == (1, 3, 4)
        assert [output.has(request(name)) for name in "abcd"] == [True, True, True, False]
        assert output.has(twice)
        assert not output.has(request("e", number=5))
        output.append(row_of("d"))
    assert [row["custom_id"] for row in rows(path)] == ["a", "b", "c", "d", "d"]


@pytest.mark.parametrize("torn", [1, 9, 17, 30, -2])
def test_a_torn_last_line_is_taken_off(torn: int, tmp_path: Path) -> None:
    """A writer that was killed leaves one; wherever it is cut, the rows before it stay."""
    path = tmp_path / "out"
    path.write_bytes(row_of("a").encode() + row_of("b").encode()[:torn])
    with OutputFile(path) as output:
        assert output.num_found == 1
        output.append(row_of("b"))
    assert [row["custom_id"] for row in rows(path)] == ["a", "b"]


def test_a_last_row_without_its_line_end_is_kept(tmp_path: Path) -> None:
    """An editor may have taken it off, or the cut was just there."""
    path = tmp_path / "out"
    path.write_bytes(row_of("a").encode()[:-1])
    with OutputFile(path) as output:
        assert output.has(request("a"))
        output.append(row_of("b"))
    assert [row["custom_id"] for row in rows(path)] == ["a", "b"]


@pytest.mark.parametrize("content", [b"notes\n", b"notes", b'{"id": "x"}\n', b"\n", line()])
def test_a_file_of_something_else_is_left_alone(content: bytes, tmp_path: Path) -> None:
    """It is named, with the line; not a byte of it changes."""
    path = tmp_path / "out"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="line 1 is no row of a batch; name another file"):
        OutputFile(path)
    assert path.read_bytes() == content


def test_failed_rows_can_be_dropped(tmp_path: Path) -> None:
    """The file is replaced as a whole, and the new one is locked as the old one was."""
    path = tmp_path / "out"
    with OutputFile(path) as output:
        for row in (row_of("a"), row_of("b", 503), row_of("c")):
            output.append(row)
    with OutputFile(path, drop_failed=True) as output:
        assert (output.num_found, output.num_failed) == (2, 0)
        with pytest.raises(ConfigurationError, match="another run is writing to it"):
            OutputFile(path)
        output.append(row_of("b"))
    assert [row["custom_id"] for row in rows(path)] == ["a", "c", "b"]
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_file_that_is_replaced_keeps_its_mode_and_its_place(tmp_path: Path) -> None:
    """Also behind a symbolic link."""
    (tmp_path / "there").mkdir()
    path = tmp_path / "there" / "out"
    path.write_bytes(row_of("a", 503).encode())
    path.chmod(0o640)
    (tmp_path / "link").symlink_to(path)
    with OutputFile(tmp_path / "link", drop_failed=True) as output:
        output.append(row_of("a"))
    assert (tmp_path / "link").is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert rows(path)[0]["response"]["status_code"] == 200


def test_a_row_that_does_not_fit_is_taken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full after half of it: a row that is written all the same by then stands on a line of its own."""
    write = os.write
    room = [40]

    def fill(file: int, data: Any) -> int:
        if not room:
            raise OSError(28, os.strerror(28))
        return write(file, data[: room.pop()])

    with OutputFile(tmp_path / "out") as output:
        with monkeypatch.context() as full:
            full.setattr(os, "write", fill)
            with pytest.raises(OSError, match="No space left on device"):
                output.append(row_of("a"))
        assert not output.has(request("a"))
        output.append(row_of("b"))
    assert [row["custom_id"] for row in rows(tmp_path / "out")] == ["b"]


def test_two_runs_never_write_to_one_file(tmp_path: Path) -> None:
    """The second says so; when the first has ended, the lock is gone."""
    with OutputFile(tmp_path / "out"), pytest.raises(ConfigurationError, match="another run is writing to it"):
        OutputFile(tmp_path / "out")
    OutputFile(tmp_path / "out").close()


def test_files_that_cannot_be_had_are_named_by_their_flags(tmp_path: Path) -> None:
    """Before anything is made."""
    path = tmp_path / "in"
    with pytest.raises(ConfigurationError, match=r"--input-file .*in: No such file or directory\."):
        check_files(path, tmp_path / "out")
    path.touch()
    with pytest.raises(ConfigurationError, match="--output-file must not be the --input-file"):
        check_files(path, tmp_path / "." / "in")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match=r"--input-file .*pipe must be a file: it is read more than once\."):
        check_files(tmp_path / "pipe", path)
    with pytest.raises(ConfigurationError, match=r"--output-file .*pipe must be a file: it is read more than once\."):
        check_files(path, tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match=r"--output-file .*: No such file or directory\."):
        OutputFile(tmp_path / "none" / "out")
    with pytest.raises(ConfigurationError, match=r"--output-file .*: Is a directory\."):
        OutputFile(tmp_path)
