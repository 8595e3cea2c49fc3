"""What `pip install .` brings along: the Python of the rooms, and every other file that they need at run time."""

import tomllib
from fnmatch import fnmatch

from tests.house.test_laws import ROOMS, ROOT


def test_every_file_of_a_room_that_is_not_python_is_package_data() -> None:
    """setuptools takes modules by itself; a source of C++ that it left out would be missed only when installed."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    others = [
        path
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and not path.name.startswith(".")
    ]
    assert others
    for path in others:
        package = ".".join(("triolet", *path.parent.relative_to(ROOT).parts))
        assert any(fnmatch(path.name, pattern) for pattern in data.get(package, [])), path


def test_every_folder_of_a_room_with_python_is_a_package() -> None:
    """One without `__init__.py` would work in a checkout and be left out of the wheel."""
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
