"""Errors in a form that another process can read."""

from __future__ import annotations

from dataclasses import dataclass

from .. import errors
from ..errors import SkipDecError

_SYSTEM_ERRORS = (TimeoutError, OSError, MemoryError)  # subclasses before their bases


@dataclass(frozen=True)
class SentError:
    """An error of skipdec or the system in a form that another process can read."""

    kind: str  # the class's name
    subject: str
    problems: tuple[str, ...]

    @classmethod
    def of(cls, error: Exception) -> SentError:
        """Encode an error; `error` decodes it."""
        if isinstance(error, SkipDecError):
            return cls(type(error).__name__, error.subject, error.problems)
        if isinstance(error, OSError) and error.errno is not None:
            problems = str(error.errno), error.strerror or ""
            return cls(OSError.__name__, str(error.filename or ""), problems)
        kind = next(kind for kind in _SYSTEM_ERRORS if isinstance(error, kind))
        return cls(kind.__name__, "", (str(error) or kind.__name__,))

    def error(self) -> Exception:
        """Return the error, with the same class or, for a library's own, its base."""
        if self.kind == OSError.__name__ and len(self.problems) == 2:
            number, text = self.problems
            return OSError(int(number), text, self.subject or None)
        for system in _SYSTEM_ERRORS:
            if self.kind == system.__name__:
                return system(*self.problems)
        kind: type[SkipDecError] = getattr(errors, self.kind)
        assert issubclass(kind, SkipDecError), self.kind
        return kind(self.subject, *self.problems)
