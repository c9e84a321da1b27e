"""What Kun raises: one class for each kind of failure, each also the built-in exception that Python
code expects in its place, so that ``except ValueError`` works without knowing Kun."""

from __future__ import annotations


class KunError(Exception):
    """Base of everything Kun raises on purpose. ``code`` is stable, the text is for people."""

    code = "internal"


class InvalidArgumentError(KunError, ValueError):
    """An argument cannot be right: out of range, of a wrong form, too long for the context."""

    code = "invalid_argument"


class NotFoundError(KunError, FileNotFoundError):
    """There is no such model or file; the message lists where it was looked for."""

    code = "not_found"

    # OSError would print an errno that is not there.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ResourceExhaustedError(KunError, RuntimeError):
    """A limit was reached: memory for the KV cache, or the length of the waiting line."""

    code = "resource_exhausted"


class UnavailableError(KunError, RuntimeError):
    """The LLM is closed, or was made in another process before fork()."""

    code = "unavailable"


class UnimplementedError(KunError, NotImplementedError):
    """Understood, and not supported; the message says what to use instead."""

    code = "unimplemented"


class DataLossError(KunError, ValueError):
    """A file is damaged or not what it claims to be."""

    code = "data_loss"


class CancelledError(KunError, RuntimeError):
    """The generation was cancelled, by abort() or by closing its LLM."""

    code = "cancelled"


class InternalError(KunError, RuntimeError):
    """A fault of Kun itself: please report it."""


class KunWarning(UserWarning):
    """An argument was accepted and makes no difference."""


_CLASSES = {
    error.code: error
    for error in (
        InvalidArgumentError,
        NotFoundError,
        ResourceExhaustedError,
        UnavailableError,
        UnimplementedError,
        DataLossError,
        CancelledError,
        InternalError,
    )
}


def from_status(code: str, message: str) -> KunError:
    """The exception of a code; the extension module raises through this."""
    return _CLASSES.get(code, InternalError)(message)
