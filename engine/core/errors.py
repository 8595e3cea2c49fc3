"""Every error that leaves Triolet on purpose.

    TrioletError
    ├── RequestError                  the client's fault, or the client's to handle; ends one request only
    │   ├── InvalidRequest            400 invalid_request_error, names the field
    │   │   └── PromptTooLong         400 context_length_exceeded, says both lengths
    │   ├── ModelNotFound             404 model_not_found
    │   ├── Unauthorized              401 invalid_api_key
    │   ├── Overloaded                503 overloaded, says when to come back
    │   └── RequestFailed             500 server_error: this request broke, the others did not
    ├── EngineDead                    503 engine_dead: an actor died; the process is about to exit
    └── StartError                    the engine refuses to start; the command exits with 2
        ├── ConfigurationError        names the flag to change
        └── ModelLoadError            names the file or the source, and what is wrong with it

An AssertionError is our own bug and fails the engine; a client's mistake is never an assert.
"""


class TrioletError(Exception):
    """The root. `status`, `type` and `code` are what the HTTP layer puts into the OpenAI error object."""

    status: int = 500
    type: str = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestError(TrioletError):
    """One request cannot be served; nothing else is touched."""


class InvalidRequest(RequestError):
    """The request is malformed or out of range. `param` names the field."""

    status = 400
    type = "invalid_request_error"


class PromptTooLong(InvalidRequest):
    """The prompt leaves no room for a token: the message gives its length and the model's."""

    code = "context_length_exceeded"


class ModelNotFound(RequestError):
    """The request names a model that is not served here."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class Unauthorized(RequestError):
    """The API key is missing or wrong."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Overloaded(RequestError):
    """The queue is full. `retry_after_s` is when to try again, in whole seconds."""

    status = 503
    type = "server_error"
    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestFailed(RequestError):
    """This request met an error inside the engine; its blocks are back, and the other requests go on."""


class EngineDead(TrioletError):
    """The engine has stopped and will not answer again."""

    status = 503
    code = "engine_dead"


class StartError(TrioletError):
    """The engine refuses to start, and says what to change."""


class ConfigurationError(StartError):
    """The flags contradict each other or the machine; the message names them."""


class ModelLoadError(StartError):
    """A model cannot be read: the message names the source or the file, and what is wrong with it."""
