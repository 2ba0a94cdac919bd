"""Options of the commands that run engines, and of ``skipdec generate``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ...engines.bundle import Verify, WeightsPlace
from ...engines.checking import MemorySize, Option, ValidatedConfig
from ...engines.errors import UsageError
from ...engines.host.console import stderr_console
from ...engines.host.processor import available_cores, thread_problems
from ..tokens.sampling import SamplingParams

if TYPE_CHECKING:
    from ...engines.backends.session import EngineBackend
    from ..generator import Generator
    from ..schedule import ExitSchedule

_RUNNING = Option(panel="Running")


class EngineOptions(ValidatedConfig):
    """Where engines run."""

    device: Annotated[str | None, _RUNNING] = Field(
        default=None, description="cpu, cuda, cuda:1 or rehearsal (cpu; TensorRT: cuda)"
    )
    threads: Annotated[int | None, _RUNNING] = Field(default=None, ge=1, description="(all cores)")
    weights: Annotated[WeightsPlace, _RUNNING] = Field(
        default="mapped",
        description="mapped files, or copied: slower to open, faster steps on a CPU",
    )
    verify: Annotated[Verify, _RUNNING] = Field(
        default="full", description="hash weights while they are loaded, or graphs only"
    )

    def _problems(self) -> Iterator[str]:
        yield from (f"`threads` {problem}" for problem in thread_problems(self.threads))

    def open(
        self,
        path: Path,
        *,
        max_batch_size: int,
        schedule: str | None = None,
        kv_memory: int | None = None,
        raw_prompts: bool = False,
        around: Callable[[EngineBackend], EngineBackend] = lambda backend: backend,
    ) -> Generator:
        """Open the bundle at ``path``; on a CPU, with one thread pool for the whole process.

        ``around``: what is put around the backend that runs its engines.

        Raises what ``Generator.open`` raises, and UsageError for threads where engines run on a
        GPU.
        """
        from ...engines.backends.session import default_device, open_backend
        from ...engines.bundle import EngineBundle
        from ..generator import Generator

        def load(bundle: EngineBundle) -> Generator:
            target = bundle.manifest.target
            where = self.device or default_device(target)
            if where == "cpu":
                from ...engines.backends.ort import use_shared_thread_pool

                use_shared_thread_pool(self.threads or available_cores())
            elif self.threads is not None:
                raise UsageError(
                    "--threads", f"is {self.threads}, but engines run on {where}; leave it out"
                )
            return Generator(
                bundle,
                around(open_backend(target, device=where, weights=self.weights)),
                schedule=schedule,
                max_batch_size=max_batch_size,
                kv_memory=kv_memory,
                raw_prompts=raw_prompts,
            )

        return EngineBundle.load(path, load, verify=self.verify)


class GenerateOptions(EngineOptions):
    """What ``skipdec generate`` was asked to do: what does not go together is refused."""

    bundle: Annotated[Path, Option(metavar="BUNDLE", is_argument=True)] = Field(
        description="a bundle's directory"
    )
    prompt: Annotated[str | None, Option(metavar="TEXT|-", is_argument=True)] = Field(
        default=None, description="a prompt; - and a pipe: all of stdin"
    )
    prompts: Annotated[tuple[str, ...], Option("-p --prompt", metavar="TEXT|-")] = Field(
        default=(), description="may be repeated"
    )
    input: Annotated[str | None, Option(metavar="FILE.jsonl|-")] = Field(
        default=None, description="lines; - is stdin"
    )
    raw_prompt: Annotated[bool, Option()] = Field(
        default=False, description="without the template that the model was tuned with"
    )
    output: Annotated[Path | None, Option(metavar="FILE.jsonl")] = Field(
        default=None, description="else stdout"
    )
    resume: Annotated[bool, Option()] = Field(
        default=False, description="skip ids that --output already holds"
    )
    force: Annotated[bool, Option()] = Field(default=False, description="replace --output")
    stream: Annotated[bool, Option()] = Field(default=False, description="text of -p as it comes")
    as_json: Annotated[bool, Option("--json")] = Field(
        default=False, description="results of -p, or figures of --output, as JSON"
    )
    quiet: Annotated[bool, Option("-q")] = Field(default=False, description="on stderr only errors")
    schedule: Annotated[str | None, _RUNNING] = Field(
        default=None, description="full, 2x, linear:max=16,min=8,… or a file (bundle's own)"
    )
    max_batch_size: Annotated[int, _RUNNING] = Field(
        default=8, ge=1, description="most completions at once"
    )
    kv_memory: Annotated[MemorySize | None, _RUNNING] = Field(
        default=None, description="most memory of KV caches, e.g. 2GiB (half of what is left)"
    )
    record: Annotated[Path | None, Option(panel="Running", metavar="DIR")] = Field(
        default=None, description="keep the inputs of all engine calls in a new DIR, for compare"
    )
    record_limit: Annotated[MemorySize, _RUNNING] = Field(
        default=256 << 20, ge=1, description="most that --record keeps"
    )
    params: Annotated[SamplingParams, Option(panel="Sampling")] = SamplingParams()

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.texts and self.input is not None:
            yield "give either `prompts` or `input`"
        if self.texts.count("-") > 1:
            yield "give - only once: stdin can be read once"
        if self.output is not None and self.input is None:
            yield "`output` needs `input`"
        if self.output is None and (self.resume or self.force):
            yield "`resume` and `force` need `output`"
        if self.resume and self.force:
            yield "`resume` and `force` exclude each other"
        if self.stream and self.input is not None:
            yield "`stream` needs `prompts`"
        if self.stream and not self.as_json and len(self.texts) * self.params.n > 1:
            yield "`stream` shows one completion as text; add `as_json` for more"

    @property
    def texts(self) -> tuple[str, ...]:
        """All prompts that were given, ``-`` among them for stdin."""
        return self.prompts if self.prompt is None else (self.prompt, *self.prompts)

    def open_generator(self) -> Generator:
        """Load the bundle's engines; say on stderr what text prompts are put into, if anything."""
        from ...engines.host.progress import ConsoleProgress

        with ConsoleProgress(quiet=self.quiet) as events:
            events.stage("loading")
            generator = self.open(
                self.bundle,
                max_batch_size=self.max_batch_size,
                kv_memory=self.kv_memory,
                raw_prompts=self.raw_prompt,
                around=self._around,
            )
            if (template := generator.prompt_template) is not None:
                events.note(
                    f"text prompts are put into {template!r}, as in tuning (--raw-prompt: not)"
                )
        return generator

    def warn_if_untuned(self, generator: Generator, schedules: Iterable[ExitSchedule]) -> None:
        """Say on stderr where texts will be poor: of weights that skip what they need."""
        from ..schedule.tuning import untuned_warning

        warning = untuned_warning(generator.bundle.manifest, generator.bundle_schedule, schedules)
        if warning is not None and not self.quiet:
            stderr_console().print(f"warning: {warning}", markup=False, soft_wrap=True)

    def _around(self, backend: EngineBackend) -> EngineBackend:
        if self.record is None:
            return backend
        from ...engines.backends.recording import RecordingBackend

        return RecordingBackend(backend, self.record, self.record_limit)
