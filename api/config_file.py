"""`triolet serve --config FILE`: the flags of the command in YAML. A flag on the command line goes before the file.

PyYAML is imported when there is a file to read; its safe loader alone, so that a file is data.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import ArgumentCollection
from cyclopts.config import Dict

from ..engine.core.errors import ConfigurationError

if TYPE_CHECKING:
    from cyclopts import App

FLAG = "--config"


def read_config_file(path: str) -> dict[str, Any]:
    """The flags that a file sets, by their names without the dashes in front. Raises ConfigurationError."""
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{FLAG} {path}: {error.strerror or error}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{FLAG} {path} is not YAML: {' '.join(str(error).split())}.") from None
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ConfigurationError(f"{FLAG} {path} must be a mapping from the names of flags to their values.")
    return {name.replace("_", "-"): value for name, value in found.items() if value is not None}


def apply_config_file(app: "App", commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """A cyclopts configuration: what the command line leaves open is taken from the file that it names."""
    if commands != ("serve",):
        return
    named = [token.value for argument in arguments if argument.name == FLAG for token in argument.tokens]
    if not named:
        return
    flags = read_config_file(named[-1])
    if "config" in flags:
        raise ConfigurationError(f"{FLAG} {named[-1]} cannot name another file.")
    if any(argument.tokens for argument in arguments if not argument.name.startswith("--")):
        flags.pop("model", None)  # The command line has a MODEL.
    Dict(flags, source=named[-1], use_commands_as_keys=False)(app, commands, arguments)
