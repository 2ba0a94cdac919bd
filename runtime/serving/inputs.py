"""InputProcessor: reads and checks requests with a bundle's model, tokenizer and schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ...engines.bundle import EngineBundle
from ...engines.bundle.contract import check_contract
from ...engines.kernels.library import kernels_in_use
from ...engines.manifest import ModelSpec
from ..drafting.config import DraftConfig
from ..drafting.resolver import DraftResolver
from ..generator import Generator
from ..opening import OpenOptions
from ..requests.request import Prompt, prepare_request
from ..requests.score_request import make_score_request
from ..schedule import ExitSchedule
from ..schedule.bundle import bundle_schedule
from ..schedule.request_schedules import ScheduleResolver
from ..tokens.sampling import SamplingParams
from ..tokens.tokenizer import Tokenizer
from .messages import ServedRequest


@dataclass(frozen=True)
class InputProcessor:
    """A bundle's model, tokenizer and schedules: enough to read requests and to check them."""

    digest: str  # of the bundle's manifest
    model: ModelSpec
    tokenizer: Tokenizer | None
    kernels: str  # the kernels that run it here, e.g. ``skipdec avx512vnni``
    schedules: ScheduleResolver
    draft: DraftConfig | None  # of all requests that do not switch drafts off
    max_model_len: int | None = None  # most positions of a request; None: those of the model

    @classmethod
    def of(cls, bundle: EngineBundle, options: OpenOptions) -> Self:
        """Read ``bundle``, which is opened with ``options``.

        Raises BundleError, ScheduleError for a schedule that does not fit it, and UsageError for
        drafts that do not.
        """
        manifest, model = bundle.manifest, bundle.manifest.model
        check_contract(manifest)
        schedules = ScheduleResolver.of(model, bundle_schedule(bundle), options.schedule)
        draft = DraftResolver(manifest, options.device, options.draft).resolve()
        template = None if options.raw_prompts else manifest.prompt_template
        tokenizer = Tokenizer.of(bundle, template)
        if tokenizer is not None:
            tokenizer.warm_up()
        return cls(
            manifest.digest,
            model,
            tokenizer,
            kernels_in_use(manifest),
            schedules,
            draft,
            options.max_model_len,
        )

    @classmethod
    def of_generator(cls, generator: Generator, options: OpenOptions) -> Self:
        """Describe the bundle that ``generator`` runs, with the drafts of ``options`` or its own.

        Raises UsageError for drafts that do not fit the bundle.
        """
        return cls(
            generator.bundle.manifest.digest,
            generator.model,
            generator.tokenizer,
            generator.kernels,
            generator.schedules,
            generator.drafts.resolve(options.draft),
            options.max_model_len,
        )

    def close(self) -> None:
        """End the processes that render chats."""
        if self.tokenizer is not None:
            self.tokenizer.close()

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        *,
        schedule: str | ExitSchedule | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
        client: str = "",
        subject: str = "prompt",
        draft: str | None = None,
    ) -> ServedRequest:
        """Make and check a request; ``deadline`` is in seconds from now.

        ``subject`` names the prompt if a client sent several. ``draft`` is as in `wants_drafts`.
        Raises UsageError, which names ``subject``, and ScheduleError.
        """
        request, resolved = prepare_request(
            prompt,
            params,
            schedule,
            self.model,
            self.tokenizer,
            self.schedules,
            client=client,
            subject=subject,
            draft=draft,
            max_model_len=self.max_model_len,
        )
        return ServedRequest.of(request, resolved, request_id, deadline)

    def prepare_score(
        self,
        prompt: Prompt,
        continuation: Prompt | None,
        *,
        schedule: str | ExitSchedule | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
        top_logprobs: int | None = None,
        followed_by: SamplingParams | None = None,
        client: str = "",
        subject: str = "prompt",
    ) -> ServedRequest:
        """Make and check a text to score; raises as `prepare`."""
        text = make_score_request(
            prompt,
            continuation,
            self.model,
            self.tokenizer,
            top_logprobs=top_logprobs,
            followed_by=followed_by,
            client=client,
            subject=subject,
        )
        max_tokens = 1 if continuation is None else len(text.token_ids)
        resolved = self.schedules.resolve(schedule, max_tokens)
        return ServedRequest.of(text, resolved, request_id, deadline)
