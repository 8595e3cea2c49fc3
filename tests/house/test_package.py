"""What `pip install .` brings along: the Python of the rooms, and every other file that they need at run time."""

import tomllib

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
    folders = {package: ROOT.joinpath(*package.split(".")[1:]) for package in data}
    globs = [(folders[package], pattern) for package, patterns in data.items() for pattern in patterns]
    brought = {path for folder, pattern in globs for path in folder.glob(pattern)}
    assert [path for path in others if path not in brought] == []


def test_every_folder_of_a_room_with_python_is_a_package() -> None:
    """One without `__init__.py` would work in a checkout and be left out of the wheel."""
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
