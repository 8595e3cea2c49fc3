"""TLS: the context that the flags describe. Imports the standard library and the engine's errors."""

import ssl

from ..engine.core.errors import ConfigurationError
from .config import ServerConfig

CERTIFICATE_MODES = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def tls_context(config: ServerConfig, alpn_protocols: list[str]) -> ssl.SSLContext | None:
    """A server's context, TLS 1.2 at least; None where no certificate is given.

    Raises ConfigurationError naming the flag: for a file that cannot be read, and for flags that need a certificate.
    """
    if config.ssl_certfile is None:
        for flag, value in (("--ssl-keyfile", config.ssl_keyfile), ("--ssl-ca-certs", config.ssl_ca_certs)):
            if value is not None:
                raise ConfigurationError(f"{flag} needs --ssl-certfile.")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(alpn_protocols)
    password = config.ssl_keyfile_password or ""
    try:
        # Given as a function, because without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, lambda: password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"--ssl-certfile or --ssl-keyfile cannot be used: {_said(error)}.") from None
    if config.ssl_ciphers is not None:
        try:
            context.set_ciphers(config.ssl_ciphers)
        except ssl.SSLError as error:
            raise ConfigurationError(f"--ssl-ciphers cannot be used: {_said(error)}.") from None
    _ask_clients(context, config)
    return context


def _ask_clients(context: ssl.SSLContext, config: ServerConfig) -> None:
    """Whether clients must show a certificate, and which ones are believed."""
    mode = config.ssl_client_certs
    if mode is None:
        mode = "none" if config.ssl_ca_certs is None else "required"
    if mode != "none" and config.ssl_ca_certs is None:
        raise ConfigurationError(f"--ssl-client-certs {mode} needs --ssl-ca-certs.")
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"--ssl-ca-certs cannot be used: {_said(error)}.") from None
    context.verify_mode = CERTIFICATE_MODES[mode]


def _said(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.removesuffix(".")
