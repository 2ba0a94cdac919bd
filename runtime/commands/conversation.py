"""A conversation on a terminal: each line is a message, and its answer is streamed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...engines.errors import ScheduleError, SkipDecError, UsageError, counted, did_you_mean
from ...engines.host.console import stderr_console
from ...engines.host.signals import Interrupted, Interruption
from ..generator import Generator
from ..schedule import ExitSchedule
from ..schedule.text import format_schedule
from ..scheduling.running_batch import RunningBatch
from ..tokens.outputs import CompletionOutput
from ..tokens.sampling import SamplingParams

_PROMPT = "> "
_CHOICES = frozenset({"temperature", "top_k", "top_p", "min_p"})
_SAMPLING = {"temperature": 0.7, "top_p": 0.9}  # small models at temperature 1 talk nonsense
_HELP = """/reset            begin a new conversation
/schedule [TEXT]  show or choose the exit schedule of the answers, e.g. full or 2x
/draft [TEXT]     show or choose what drafts, e.g. own+lookup or off; answers stay the same
/help             show this
/exit             end, as Ctrl-D does; Ctrl-C ends an answer"""


class Conversation:
    """The messages so far, and the schedule and drafts of the answers to come.

    Each answer is streamed to stdout, and its figures go to stderr, unless ``quiet``. Each prompt
    of a conversation begins with the one before it, so on a CPU only the rest of it runs.
    """

    def __init__(
        self,
        generator: Generator,
        params: SamplingParams,
        *,
        system: str | None = None,
        quiet: bool = False,
    ) -> None:
        """Raise UsageError if the bundle renders no chats, and MissingExtraError without jinja2."""
        self._generator = generator
        self._params = self._with_sampling(params)
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[dict[str, Any]] = [*self._opening]
        self._schedule: str | None = None  # None: the generator's, as for drafts
        self._draft: str | None = None
        self._quiet = quiet
        self._is_open = True
        self._commands: dict[str, Callable[[str], object]] = {
            "/reset": self._reset,
            "/schedule": self._choose_schedule,
            "/draft": self._choose_draft,
            "/help": lambda _: self._say(_HELP),
            "/exit": self._end,
        }
        if generator.bundle.manifest.chat_template is None:
            raise UsageError(
                str(generator.bundle.path),
                "has no chat template; continue a text with skipdec generate, or put "
                "chat_template.jinja into the checkpoint and export it again",
            )
        hello = [*self._opening, {"role": "user", "content": "Hello"}]
        generator.make_requests({"messages": hello}, params)
        self._warn_if_untuned(self._resolved(None))

    def run(self) -> None:
        """Read messages until EOF or /exit. Ctrl-C ends an answer, SIGTERM the conversation."""
        if sys.stdin.isatty():
            with suppress(ImportError):
                import readline  # noqa: F401  (input() has a history and editing keys with it)
            self._say(f"{self._generator.model.name}: type a message, or /help")
        while self._is_open:
            draft = self._draft
            with self._generator.running_batch(draft=draft) as batch:
                while self._is_open and self._draft == draft:
                    self._read(batch)

    def _with_sampling(self, params: SamplingParams) -> SamplingParams:
        """Return ``params``, less random if neither the user nor the bundle sets the sampling."""
        recommended = self._generator.model.sampling_defaults.given
        if recommended or not _CHOICES.isdisjoint(params.given):
            return params
        return params.updated(**_SAMPLING)

    def _read(self, batch: RunningBatch) -> None:
        """Read one line: a message, or a command."""
        try:
            line = input(_PROMPT if sys.stdin.isatty() else "").rstrip()
        except EOFError:
            if sys.stdin.isatty():
                print()
            self._end("")
            return
        except Interrupted as interrupted:
            if interrupted.number != signal.SIGINT:
                raise
            print()  # discard the line
            return
        if not line.startswith("/"):
            if line:
                self._answer(line, batch)
            return
        name, _, argument = line.partition(" ")
        if name not in self._commands:
            meant = did_you_mean(name, self._commands)
            self._say(f"{name} is unknown; {meant}/help lists all commands")
            return
        try:
            self._commands[name](argument.strip())
        except (ScheduleError, UsageError) as error:
            self._say(f"error: {error}")

    def _answer(self, text: str, batch: RunningBatch) -> None:
        """Answer a message, and add both to the conversation."""
        messages = [*self._messages, {"role": "user", "content": text}]
        try:
            number = batch.add({"messages": messages}, self._params, schedule=self._schedule)
        except SkipDecError as error:  # usually because it is too long
            self._say(f"error: {error}; /reset begins a new conversation")
            return
        with Interruption() as interruption:
            while not batch.has_ended(number):
                deltas = batch.step()
                if interruption.is_requested():
                    deltas += batch.abort(number, "interrupted")
                sys.stdout.write("".join(delta.text for delta in deltas))
                sys.stdout.flush()
        (answer,) = batch.take(number).outputs
        print()
        if answer.finish_reason == "error":
            self._say(f"error: {answer.stop_reason}")
            return
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        self._report(answer)
        if interruption.number not in (None, signal.SIGINT):
            interruption.raise_again()

    def _report(self, answer: CompletionOutput) -> None:
        """Say how fast an answer came."""
        count, times, layers = len(answer.token_ids), answer.timings, answer.layers_per_token[1:]
        facts = [counted(count, "token")]
        if times is not None:
            facts.append(f"the first after {times.time_to_first_token:.2f} s")
            if layers and times.decode_seconds > 0:
                facts.append(f"then {len(layers) / times.decode_seconds:.1f} per second")
        if layers:
            depth, most = sum(layers) / len(layers), self._generator.model.num_layers
            facts.append(f"{depth:.2f} of {most} layers per token")
        if answer.drafts is not None:
            facts.append(f"{answer.drafts.tokens_per_pass:.2f} tokens per pass")
        self._say(f"[{', '.join(facts)}]", dim=True)
        if answer.finish_reason == "length" and "max_tokens" not in self._params.given:
            self._say("the context is full; /reset begins a new conversation")

    def _reset(self, _: str) -> None:
        self._messages = [*self._opening]
        self._say("a new conversation")

    def _choose_schedule(self, text: str) -> None:
        chosen = text or self._schedule
        resolved = self._resolved(chosen)
        self._schedule = chosen
        self._say(f"schedule {format_schedule(resolved)}")
        self._warn_if_untuned(resolved)

    def _resolved(self, schedule: str | None) -> ExitSchedule:
        """Return the schedule as the longest answer would run it."""
        generator = self._generator
        return generator.resolve_schedule(schedule, max_tokens=generator.model.max_seq_len)

    def _warn_if_untuned(self, schedule: ExitSchedule) -> None:
        if (warning := self._generator.untuned_warning([schedule])) is not None:
            self._say(f"warning: {warning}")

    def _choose_draft(self, text: str) -> None:
        chosen = text or self._draft
        resolved = self._generator.drafts.resolve(chosen)
        self._draft = chosen
        self._say(f"draft {'off' if resolved is None else resolved}")

    def _end(self, _: str) -> None:
        self._is_open = False

    def _say(self, text: str, *, dim: bool = False) -> None:
        if not self._quiet:
            style = "dim" if dim else None
            stderr_console().print(text, markup=False, soft_wrap=True, style=style)
