"""The served bundles by name, and whether the server accepts requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.types import Receive

from ....engines.errors import ScheduleError, UsageError, shown
from ...schedule import ExitSchedule
from ...schedule.request_schedules import ScheduleResolver
from ...schedule.text import beyond_notation, format_schedule
from ...scheduling.stats import EngineStats
from ...tokens.template_process import MAX_PROCESSES
from ..service import EngineService
from ..stream import RequestStream
from .config import ANY_SCHEDULE
from .logs import RequestRecord
from .protocol import ApiError, unavailable


def allowed_texts(schedules: ScheduleResolver, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the schedules that requests may name: full depth, the bundle's own, and ``allowed``.

    Raises ScheduleError for a text that does not fit the bundle.
    """

    def notation(text: str) -> str:
        longest = schedules.resolve(text, schedules.positions)
        return text if beyond_notation(text) is None else format_schedule(longest)

    given = (text if text == ANY_SCHEDULE else notation(text) for text in allowed)
    return tuple(dict.fromkeys(("full", format_schedule(schedules.own), *given)))


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A bundle under a name, with the schedules that requests may name."""

    name: str
    engine: EngineService
    schedules: tuple[str, ...]  # texts; "any" among them allows all
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970
    # Renders and tokenizes chats; a runaway template delays only the chats of its own model.
    chats: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(MAX_PROCESSES, "skipdec chats")
    )

    @classmethod
    def of(cls, name: str, engine: EngineService, allowed: Sequence[str]) -> ServedModel:
        """Serve ``engine`` with the schedules of `allowed_texts`. Raises what that raises."""
        return cls(name, engine, allowed_texts(engine.inputs.schedules, allowed))

    @property
    def has_template(self) -> bool:
        """True if the bundle has a chat template."""
        tokenizer = self.engine.inputs.tokenizer
        return tokenizer is not None and tokenizer.chat is not None

    def require_template(self) -> None:
        """Raise ApiError if the bundle has no chat template."""
        if not self.has_template:
            raise ApiError(
                400,
                f"{self.name} has no chat template; use /v1/completions, or put "
                "chat_template.jinja into the checkpoint and export it again",
                code="no_chat_template",
            )

    @cached_property
    def listed(self) -> tuple[str, ...]:
        """The texts of schedules that are allowed by name."""
        return tuple(text for text in self.schedules if text != ANY_SCHEDULE)

    def lists(self, wanted: str | None) -> bool:
        """Return True if ``wanted`` is the default or a listed text."""
        return wanted is None or wanted in self.listed

    def schedule_of(self, text: str | None, num_tokens: int) -> ExitSchedule:
        """Return the schedule of ``text``, listed or None, for a request of ``num_tokens``.

        If ``text`` needs a longer request, it is the schedule for the longest possible one.
        """
        schedules = self.engine.inputs.schedules
        try:
            return schedules.resolve(text, num_tokens)
        except ScheduleError:
            return schedules.resolve(text, schedules.positions)

    def allows_any(self, wanted: str | None) -> bool:
        """Return True if ``wanted`` is allowed without comparing its schedule."""
        return self.lists(wanted) or ANY_SCHEDULE in self.schedules

    def unread(self, wanted: str | None, error: ScheduleError) -> ScheduleError:
        """Return the error for a text that raised ``error``; it lists what this server allows."""
        if wanted is None or self.allows_any(wanted):
            return error
        return self._refusal(wanted, "not allowed")

    def require_notation(self, wanted: str | None) -> None:
        """Raise ScheduleError for a file's name or a document, because clients may use neither."""
        if wanted is not None and (kind := beyond_notation(wanted)):
            raise self._refusal(wanted, kind)

    def require_allowed(self, wanted: str | None, resolved: str, max_tokens: int) -> None:
        """Raise ScheduleError unless a request of ``max_tokens`` may run ``wanted``.

        Allowed are listed texts, and other texts of a schedule that a listed text gives for this
        request. ``resolved`` is the schedule that ``wanted`` gives.
        """
        if self.allows_any(wanted):
            return
        assert wanted is not None
        allowed = (self.schedule_of(text, max_tokens) for text in (None, *self.listed))
        if resolved not in map(format_schedule, allowed):
            raise self._refusal(wanted, "not allowed")

    def _refusal(self, wanted: str, problem: str) -> ScheduleError:
        remedy = f"allowed: {', '.join(self.schedules)}; see /v1/schedules"
        return ScheduleError("schedule", f"{shown(wanted)} is {problem}; {remedy}")

    def label(self, wanted: str | None) -> str:
        """Return the metric label of requests for ``wanted``; there are few labels."""
        if wanted is None:
            return "default"
        return wanted if wanted in self.listed else "other"


Texts = Collection[RequestStream | asyncio.Future[Any]]  # one request's texts, or their preparation


class ServedModels:
    """The models to serve by ``names``, of which those in ``loaded`` accept requests."""

    def __init__(self, names: Sequence[str]) -> None:
        """Raise UsageError for a name of two bundles, and for one that no answer could contain."""
        for name in names:
            if not name or not name.isprintable():
                problem = f"has the name {name!r}, which is not printable text in UTF-8"
                raise UsageError("BUNDLE", f"{problem}; write NAME=PATH for it")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(
                "BUNDLE", f"{', '.join(twice)} names two bundles; write NAME=PATH for one of them"
            )
        self.names = tuple(names)
        self.is_draining = False
        # Parses long bodies and tokenizes long prompts; finished answers never wait for it.
        self.preparation = ThreadPoolExecutor(thread_name_prefix="skipdec preparation")
        self._running: dict[int, Texts] = {}  # by the id of its collection
        self.loaded: dict[str, ServedModel] = {}  # by name

    def named(self, name: str | None) -> ServedModel:
        """Return the model of a request. Raises ApiError 404, or 503 while it is loading."""
        if name is None and len(self.names) == 1:
            name = self.names[0]
        if name in self.loaded:
            return self.loaded[name]
        if name in self.names:
            raise unavailable(f"{name} is loading")
        known = ", ".join(self.names)
        problem = "model is missing" if name is None else f"model {shown(name)} is unknown"
        raise ApiError(404, f"{problem}; served: {known}", param="model", code="model_not_found")

    def stats(self) -> dict[str, EngineStats]:
        """Return the figures of every model's engine."""
        return {name: model.engine.stats() for name, model in self.loaded.items()}

    @property
    def num_running(self) -> int:
        """The number of texts that have not ended."""
        return sum(map(len, self._running.values()))

    @asynccontextmanager
    async def running_for(
        self, receive: Receive, record: RequestRecord, texts: Texts
    ) -> AsyncIterator[None]:
        """Cancel all ``texts`` when the block ends, or when the client disconnects within it."""

        def cancel() -> None:
            for text in texts:
                text.cancel()

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            record.disconnected = True
            cancel()

        watching = asyncio.create_task(watch())
        self._running[id(texts)] = texts
        try:
            yield
        finally:
            del self._running[id(texts)]
            watching.cancel()
            cancel()

    @property
    def unready(self) -> str | None:
        """The reason why requests are refused, or None."""
        if self.is_draining:
            return "is draining"
        if loading := [name for name in self.names if name not in self.loaded]:
            return f"is loading {', '.join(loading)}"
        reasons = {name: model.engine.unready for name, model in self.loaded.items()}
        return next((f"{name} {why}" for name, why in reasons.items() if why is not None), None)

    def hung(self, timeout: float) -> str | None:
        """Name an engine that has failed, or whose current step exceeds ``timeout`` seconds."""
        for name, model in self.loaded.items():
            if (seconds := model.engine.seconds_in_step) > timeout:
                return f"{name} has been in one step for {seconds:.0f} s"
            if model.engine.failure.done():
                return f"{name} has failed ({model.engine.failure.result()})"
        return None
