"""The flags of `triolet run-batch`, and their checks. Nothing heavy."""

from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter

from ...engine.core.errors import ConfigurationError
from ..asking.options import TargetOptions, at_least_one

CONCURRENCY_REMOTE = 64


@attrs.frozen(kw_only=True)
class BatchOptions(TargetOptions):
    """What to answer, and where to."""

    input_file: Annotated[Path, Parameter(alias="-i")]
    """Requests: a JSON object a line, with custom_id, method, url and body."""
    output_file: Annotated[Path, Parameter(alias="-o")]
    """Answers: a JSON object a line, with id, custom_id, response and error. What it has already is not asked again."""
    concurrency: int | None = attrs.field(default=None, validator=at_least_one)
    """Most requests at a time; without it --max-num-seqs, or 64 with --url."""
    retry_failed: bool = False
    """Take the rows that failed out of the output first, and ask those requests again."""
    served_model_name: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    """What requests may call the model that is loaded here, as with `triolet serve`; several times."""

    def __attrs_post_init__(self) -> None:
        if self.url is not None and self.served_model_name:
            raise ConfigurationError("--served-model-name is for a model that is loaded here, not for --url.")
