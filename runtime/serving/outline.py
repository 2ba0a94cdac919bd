"""BundleOutline: what is known of a bundle without running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ...engines.bundle import EngineBundle
from ...engines.bundle.contract import check_contract
from ...engines.kernels.library import kernels_in_use
from ...engines.manifest import ModelSpec
from ..generator import Generator
from ..requests.request import Prompt, Request, ScoreRequest, make_request, make_score_request
from ..schedule import ExitSchedule
from ..schedule.bundle import bundle_schedule
from ..schedule.request_schedules import ScheduleResolver
from ..tokens.sampling import SamplingParams
from ..tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class BundleOutline:
    """A bundle's model, tokenizer and schedules: enough to read requests and to check them."""

    digest: str  # of the bundle's manifest
    model: ModelSpec
    tokenizer: Tokenizer | None
    kernels: str  # what runs it here, e.g. ``skipdec avx512vnni``
    schedules: ScheduleResolver

    @classmethod
    def of(
        cls, bundle: EngineBundle, schedule: str | ExitSchedule | None, *, raw_prompts: bool
    ) -> Self:
        """Read ``bundle``; ``schedule`` and ``raw_prompts`` as in `Generator.open`.

        Raises BundleError, and ScheduleError for a schedule that does not fit it.
        """
        manifest = bundle.manifest
        check_contract(manifest)
        own = bundle_schedule(bundle)
        model = manifest.model
        schedules = ScheduleResolver(model.num_layers, own, schedule, model.max_seq_len)
        schedules.resolve(None, 1)
        template = None if raw_prompts else manifest.prompt_template
        tokenizer = Tokenizer.of(bundle, template)
        if tokenizer is not None:
            tokenizer.least_tokens("")  # which looks through the vocabulary, the first time
        kernels = kernels_in_use(manifest)
        return cls(manifest.digest, model, tokenizer, kernels, schedules)

    @classmethod
    def of_generator(cls, generator: Generator) -> Self:
        """Describe the bundle that ``generator`` runs."""
        return cls(
            generator.bundle.manifest.digest,
            generator.model,
            generator.tokenizer,
            generator.kernels,
            generator.schedules,
        )

    @property
    def bundle_schedule(self) -> ExitSchedule:
        """The bundle's own."""
        return self.schedules.own

    def resolve_schedule(
        self, schedule: str | ExitSchedule | None, *, max_tokens: int
    ) -> ExitSchedule:
        """See `Generator.resolve_schedule`."""
        return self.schedules.resolve(schedule, max_tokens)

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        schedule: str | ExitSchedule | None,
        client: str = "",
        subject: str = "prompt",
    ) -> tuple[Request, ExitSchedule]:
        """Make and check a request. Raises UsageError, which names ``subject``, and ScheduleError.

        ``subject``: the prompt, where a client sent several.
        """
        request = make_request(
            0, prompt, params or SamplingParams(), self.model, self.tokenizer, subject, client
        )
        return request, self.schedules.resolve(schedule, request.max_tokens)

    def prepare_score(
        self,
        prompt: Prompt,
        continuation: Prompt | None,
        schedule: str | ExitSchedule | None,
        *,
        top_logprobs: int | None = None,
        followed_by: SamplingParams | None = None,
        client: str = "",
        subject: str = "prompt",
    ) -> tuple[ScoreRequest, ExitSchedule]:
        """Make and check a text to score; raises as `prepare`."""
        request = make_score_request(
            prompt,
            continuation,
            self.model,
            self.tokenizer,
            top_logprobs=top_logprobs,
            followed_by=followed_by,
            client=client,
            subject=subject,
        )
        max_tokens = 1 if continuation is None else len(request.token_ids)
        return request, self.schedules.resolve(schedule, max_tokens)
