"""How the server listens and what it lets in: `ServerConfig`, frozen, built once by the command line.

Imports the engine's errors, attrs, and cyclopts' `Parameter` (names of environment variables); no trio, no torch.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import attrs
from cyclopts import Parameter

from ..engine.core.errors import ConfigurationError
from ..engine.core.pooling import PoolingKind

KEY_VARIABLE = "TRIOLET_API_KEY"
ADMIN_KEY_VARIABLE = "TRIOLET_ADMIN_API_KEY"

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
ToolParserName = Literal["hermes", "llama3_json", "mistral", "qwen3_coder", "pythonic"]
ReasoningParserName = Literal["deepseek_r1", "qwen3", "none"]
ClientCerts = Literal["none", "optional", "required"]

_METRIC_PREFIX = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)?")

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str, flag: str) -> int:
    """Bytes from `1048576`, `512M`, `2GiB`, `1.5g`: every suffix counts in powers of 1024.

    Raises ConfigurationError naming `flag`.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{flag} takes bytes, or a number with K, M, G or T (512M, 2GiB), not {text!r}.")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])


def _flag(attribute: "attrs.Attribute[Any]") -> str:
    return "--" + attribute.name.replace("_", "-")


def _positive(_: object, attribute: "attrs.Attribute[Any]", value: float) -> None:
    if not value > 0:
        raise ConfigurationError(f"{_flag(attribute)} must be above 0, not {value}.")


def _seconds(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise ConfigurationError(f"{_flag(attribute)} must be a number of seconds above 0, not {value}.")


def _not_negative(_: object, attribute: "attrs.Attribute[Any]", value: float) -> None:
    if not value >= 0:
        raise ConfigurationError(f"{_flag(attribute)} must be at least 0, not {value}.")


def _port(_: object, __: object, value: int) -> None:
    if not 0 <= value <= 65535:
        raise ConfigurationError(f"--port must be from 0 to 65535, not {value}.")


def _no_empty(_: object, attribute: "attrs.Attribute[Any]", value: tuple[str, ...]) -> None:
    if not all(value):
        raise ConfigurationError(f"{_flag(attribute)} must not be empty.")


def _http_url(_: object, attribute: "attrs.Attribute[Any]", value: str | None) -> None:
    if value is not None and not re.match(r"https?://[^/]", value):
        raise ConfigurationError(f"{_flag(attribute)} takes the URL of OTLP over HTTP (http://…), not {value!r}.")


def _metric_prefix(_: object, attribute: "attrs.Attribute[Any]", value: str) -> None:
    if not _METRIC_PREFIX.fullmatch(value):
        raise ConfigurationError(f"{_flag(attribute)} takes letters, digits, `_` and `:`, not {value!r}.")


def _names(value: Iterable[str]) -> tuple[str, ...]:
    """Given one by one, or as a JSON list, which is how vLLM takes them."""
    names = tuple(value)
    if len(names) == 1 and names[0].lstrip().startswith("["):
        try:
            listed = json.loads(names[0])
        except ValueError:
            return names
        return tuple(map(str, listed))
    return names


def _root_path(_: object, __: object, value: str) -> None:
    if value and not (value.startswith("/") and not value.endswith("/") and "//" not in value and value.isascii()):
        raise ConfigurationError(f"--root-path must begin with a slash and not end with one, not {value!r}.")


@attrs.frozen(kw_only=True)
class ServerConfig:
    """How to listen, whom to let in, and how long to wait for clients."""

    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 is every IPv4 address of this machine."""
    port: int = attrs.field(default=8000, validator=_port)
    """The port to listen on; 0 takes a free one and prints it."""
    uds: str | None = None
    """A socket file to listen on instead of a port; only its owner may connect."""
    root_path: str = attrs.field(default="", validator=_root_path)
    """Where a proxy puts the server (/llm): requests are taken with this in front of their path, and without."""
    allowed_origins: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = attrs.field(
        default=(), converter=_names, validator=_no_empty
    )
    """A web origin (https://example.org) whose pages may call the server; several times, or * for all. None by
    default: any page could otherwise use a server without keys that its reader can reach."""
    allowed_methods: Annotated[tuple[str, ...], Parameter(negative=())] = attrs.field(
        default=("*",), converter=_names, validator=_no_empty
    )
    """A method that such pages may use; several times, or * for all."""
    allowed_headers: Annotated[tuple[str, ...], Parameter(negative=())] = attrs.field(
        default=("*",), converter=_names, validator=_no_empty
    )
    """A header that such pages may send; several times, or * for all."""
    allow_credentials: bool = False
    """Let such pages send cookies; takes origins by name."""
    config: str | None = None
    """A YAML file with flags (port: 8000); those on the command line go before it."""
    api_key: Annotated[tuple[str, ...], Parameter(env_var=KEY_VARIABLE, negative=(), show_default=False)] = attrs.field(
        default=(), validator=_no_empty, repr=False
    )
    """A key that clients must send as `Authorization: Bearer KEY`; may be given several times. Only /health is open."""
    admin_api_key: Annotated[
        tuple[str, ...], Parameter(env_var=ADMIN_KEY_VARIABLE, negative=(), show_default=False)
    ] = attrs.field(default=(), validator=_no_empty, repr=False)
    """A key for the control routes, which an API key then no longer opens; may be given several times."""
    served_model_name: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = attrs.field(
        default=(), validator=_no_empty
    )
    """The name that clients call the model by; may be given several times, the first one is the default."""
    log_level: LogLevel = "info"
    """What the log on stderr shows; debug adds one line for each request."""
    log_format: LogFormat = "text"
    """How the log is written: a line of text for each event, or a JSON object."""
    trace: Annotated[str | None, Parameter(show_default=False)] = None
    """A file for steps and requests as a Chrome trace (JSON; chrome://tracing and Perfetto read it)."""
    otlp_traces_endpoint: Annotated[str | None, Parameter(show_default=False)] = attrs.field(
        default=None, validator=_http_url
    )
    """Where to send OpenTelemetry spans, one for each request, by OTLP over HTTP (http://localhost:4318/v1/traces)."""
    metrics_prefix: str = attrs.field(default="vllm:", validator=_metric_prefix)
    """What the names on /metrics that vLLM has too begin with; our own begin with `triolet:` in any case."""
    http2: bool = True
    """Speak HTTP/2 too: with TLS to whom asks for it, without TLS to whom begins with it (prior knowledge)."""
    write_timeout: float = attrs.field(default=30.0, validator=_positive)
    """Seconds until a client that has stopped reading is dropped and its request freed."""
    body_timeout: float = attrs.field(default=60.0, validator=_positive)
    """Seconds that a client may take to send the body of a request."""
    max_body_size: int = attrs.field(default=16 * 1024 * 1024, validator=_positive)
    """Most bytes of a request's body (K, M, G count in 1024s); a longer one is answered with 413."""
    keep_alive_timeout: float = attrs.field(default=10.0, validator=_positive)
    """Seconds that a connection may be idle, or take to send the head of a request, before it is closed."""
    ping_interval: float = attrs.field(default=10.0, validator=_positive)
    """Seconds without an event after which a stream sends a comment, so that proxies keep it open."""
    default_timeout: float | None = attrs.field(default=None, validator=_seconds)
    """Seconds that a request may take in all when it brings no timeout of its own; without the flag, any time."""
    max_queue_time: float | None = attrs.field(default=None, validator=_seconds)
    """Seconds that a request may wait for admission when it brings no max_queue_time; then it is answered with 503."""
    response_store_size: int = attrs.field(default=64 * 1024 * 1024, validator=_not_negative)
    """Most bytes of responses kept in memory, to be continued and read again (K, M, G count in 1024s); 0: none."""
    response_store_age: float = attrs.field(default=24 * 3600.0, validator=_positive)
    """Seconds that a response is kept after it was stored or last continued."""
    strict_finish_reasons: bool = False
    """Say `length` where a request timed out or was cancelled, for clients that know OpenAI's finish reasons alone."""
    embedding_pooling: PoolingKind = "last"
    """What /v1/embeddings makes a vector of where a request does not say: the last token, or the mean of all."""
    shutdown_timeout: float = attrs.field(default=30.0, validator=_not_negative)
    """Seconds that running requests may take to finish once the server is told to stop."""
    max_connections: int = attrs.field(default=4096, validator=_positive)
    """Most connections at a time; one more is answered with 503 and closed. Never more than there are descriptors."""
    cache_isolation: bool = False
    """Let only requests with the same API key share cached prefixes: how fast a prompt is then tells others nothing."""
    trust_request_chat_template: bool = False
    """Take `chat_template` from requests. It is rendered in a process of its own, bounded in time, memory and size."""
    tool_call_parser: ToolParserName | None = None
    """How the model writes tool calls; without the flag that is told from its chat template (docs/tools.md)."""
    reasoning_parser: ReasoningParserName | None = None
    """How the model marks its reasoning, or none; without the flag that is told from its chat template."""
    enable_auto_tool_choice: bool = True
    """Taken for the sake of command lines that were written for vLLM: tools need no flag here."""
    ssl_certfile: str | None = None
    """A file with the server's certificate chain (PEM): the server then speaks TLS, and nothing else."""
    ssl_keyfile: str | None = None
    """A file with the certificate's private key, unless it is in --ssl-certfile."""
    ssl_keyfile_password: Annotated[str | None, Parameter(env_var="TRIOLET_SSL_KEYFILE_PASSWORD")] = attrs.field(
        default=None, repr=False
    )
    """The password of an encrypted private key."""
    ssl_ca_certs: str | None = None
    """A file with the certificates (PEM) that clients' own certificates are checked against."""
    ssl_client_certs: ClientCerts | None = None
    """Whether clients must show a certificate; by default they must when --ssl-ca-certs is given."""
    ssl_ciphers: str | None = None
    """OpenSSL's list of ciphers for TLS 1.2."""

    @property
    def shows_prompts(self) -> bool:
        """Whether those whom the control routes let in may read others' prompts: an admin may, and on a server without
        keys everybody is one. Keys that are all alike give nobody that right."""
        return bool(self.admin_api_key) or not self.api_key

    def __attrs_post_init__(self) -> None:
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigurationError("--allow-credentials takes --allowed-origins by name, not *.")
