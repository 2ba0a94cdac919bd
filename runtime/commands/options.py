"""Options that commands share, and the options of ``skipdec generate``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ...engines.checking import Option, ValidatedConfig, field_problems
from ...engines.errors import UsageError
from ...engines.host.console import stderr_console
from ..opening import ENGINE_OPTIONS, GENERATOR_OPTIONS, OpenOptions
from ..tokens.sampling import SamplingParams
from ..tokens.template_variables import read_variables
from .checkpoints import ExportChoice, bundle_of

if TYPE_CHECKING:
    from ..generator import Generator, OpenGenerator
    from ..requests.request import Prompt
    from ..schedule import ExitSchedule

EngineChoice = Annotated[OpenOptions, Option(only=ENGINE_OPTIONS)]
"""A command's parameter: the device, threads, weights and verification of its engines."""


def open_bundle(path: Path, options: OpenOptions) -> Generator:
    """Open a command's bundle with one thread pool for the whole process.

    Raises what `Generator.open` raises, with options named as on the command line, for example
    ``--threads`` for engines on a GPU.
    """
    from ..generator import Generator

    try:
        return Generator.open_with_shared_pool(path, options)
    except UsageError as error:
        if error.subject not in (*ENGINE_OPTIONS, "draft"):
            raise
        raise UsageError(f"--{error.subject}", *error.problems) from error


def opener(options: OpenOptions, *, max_batch_size: int) -> OpenGenerator:
    """Return a function that opens a bundle by `open_bundle` with ``max_batch_size`` rows."""
    return partial(open_bundle, options=options.updated(max_batch_size=max_batch_size))


class GenerateOptions(ValidatedConfig):
    """The options of ``skipdec generate``; contradictory ones are refused."""

    bundle: Annotated[Path, Option(metavar="MODEL", is_argument=True)] = Field(
        description="a bundle's directory, or a checkpoint: its directory, hub id or short name"
    )
    prompt: Annotated[str | None, Option(metavar="TEXT|-", is_argument=True)] = Field(
        default=None, description="a prompt; - reads all of stdin"
    )
    prompts: Annotated[tuple[str, ...], Option("-p --prompt", metavar="TEXT|-")] = Field(
        default=(), description="may be repeated"
    )
    chat: Annotated[bool, Option()] = Field(
        default=False,
        description="prompts are a user's messages; on a terminal, without prompts: a conversation",
    )
    system: Annotated[str | None, Option(metavar="TEXT")] = Field(
        default=None, description="the system's message before them, with --chat"
    )
    template_variables: tuple[str, ...] = Field(
        default=(),
        description="for the chat template, e.g. enable_thinking=false; may be repeated",
    )
    input: Annotated[str | None, Option(metavar="FILE.jsonl|-")] = Field(
        default=None, description="lines of JSON; - is stdin"
    )
    output: Annotated[Path | None, Option(metavar="FILE.jsonl")] = Field(
        default=None, description="file for results; default: stdout"
    )
    resume: Annotated[bool, Option()] = Field(
        default=False, description="skip ids that are in --output already"
    )
    force: Annotated[bool, Option()] = Field(default=False, description="replace --output")
    stream: Annotated[bool, Option()] = Field(default=False, description="print text as it comes")
    as_json: Annotated[bool, Option("--json")] = Field(
        default=False, description="results of -p, or figures of --output, as JSON"
    )
    quiet: Annotated[bool, Option("-q")] = Field(default=False, description="report only errors")
    opening: Annotated[OpenOptions, Option(only=GENERATOR_OPTIONS)] = OpenOptions()
    export: Annotated[ExportChoice, Option()] = ExportChoice()
    params: Annotated[SamplingParams, Option()] = SamplingParams()

    def _problems(self) -> Iterator[str]:
        if self.texts and self.input is not None:
            yield "give either `prompts` or `input`"
        if self.chat and self.input is not None:
            yield "`chat` is for `prompts`; give lines of `input` messages instead of a prompt"
        if self.system is not None and not self.chat:
            yield "`system` needs `chat`"
        if self.template_variables:
            if not self.chat:
                yield "`template_variables` needs `chat`"
            yield from field_problems("template_variables", read_variables, self.template_variables)
        if self.texts.count("-") > 1:
            yield "give - only once, because stdin can be read only once"
        if self.output is not None and self.input is None:
            yield "`output` needs `input`"
        if self.output is None and (self.resume or self.force):
            yield "`resume` and `force` need `output`"
        if self.resume and self.force:
            yield "`resume` and `force` exclude each other"
        if self.as_json and self.input is not None and self.output is None:
            yield "`as_json` with `input` needs `output`; without it the results are JSON already"
        if self.stream and self.input is not None:
            yield "`stream` needs `prompts`"
        if self.stream and not self.as_json and len(self.texts) * self.params.n > 1:
            yield "`stream` shows one completion as text; add `as_json` for more"

    @property
    def texts(self) -> tuple[str, ...]:
        """All given prompts; ``-`` stands for stdin."""
        return self.prompts if self.prompt is None else (self.prompt, *self.prompts)

    def prompts_of(self, texts: Sequence[str]) -> list[Prompt]:
        """Return texts as prompts: with ``chat``, each as a user's message after the system's."""
        if not self.chat:
            return list(texts)
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        variables = read_variables(self.template_variables)
        return [
            {
                "messages": [*system, {"role": "user", "content": text}],
                "chat_template_kwargs": variables,
            }
            for text in texts
        ]

    def exported(self) -> GenerateOptions:
        """Return the options with a bundle in place of a checkpoint, which is exported once."""
        bundle = bundle_of(self.bundle, self.export, quiet=self.quiet)
        return self.updated(bundle=bundle, export=ExportChoice())

    def open_generator(self) -> Generator:
        """Load the bundle's engines; report its prompt template on stderr, if it has one."""
        from ...engines.host.progress import ConsoleProgress

        with ConsoleProgress(quiet=self.quiet) as events:
            events.stage("loading")
            generator = open_bundle(self.bundle, self.opening)
            if (template := generator.prompt_template) is not None and not self.chat:
                events.note(
                    f"text prompts are put into {template!r}, as in tuning (raw_prompts "
                    "disables this)"
                )
        return generator

    def warn_if_untuned(self, generator: Generator, schedules: Iterable[ExitSchedule]) -> None:
        """Warn on stderr of a schedule that skips layers of a model not tuned for it."""
        warning = generator.untuned_warning(schedules)
        if warning is not None and not self.quiet:
            stderr_console().print(f"warning: {warning}", markup=False, soft_wrap=True)
