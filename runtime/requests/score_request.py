"""Requests to score a continuation of a prompt, or a prompt's own tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...engines.checking import plain
from ...engines.errors import UsageError, shown
from ...engines.manifest import ModelSpec
from ..schedule import ExitSchedule
from ..tokens.sampling import SamplingParams
from ..tokens.tokenizer import Tokenizer
from .request import Prompt, Prompts, Request, as_prompt_list, make_request, read_prompt


@dataclass(frozen=True)
class ScoreRequest:
    """One prompt and the continuation to score, as token ids.

    With ``is_prompt`` the continuation is the rest of the prompt, so its tokens run at the depth of
    prompt tokens. ``top_logprobs`` is the number of most probable tokens to report with each.
    ``followed_by`` requests one token after the continuation, at the same depth. ``client`` names
    the sender; clients take turns.
    """

    index: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    is_prompt: bool = False
    top_logprobs: int | None = None
    followed_by: Request | None = None
    client: str = ""

    @property
    def fed(self) -> tuple[int, ...]:
        """The tokens that the engines read: the last one only if a token is to follow it."""
        is_whole = self.is_prompt or self.followed_by is not None
        read = self.token_ids if is_whole else self.token_ids[:-1]
        return (*self.prompt_token_ids, *read)

    @property
    def positions(self) -> range:
        """The positions before each scored token and before the one that follows."""
        first = len(self.prompt_token_ids) - 1
        return range(first, first + len(self.token_ids) + (self.followed_by is not None))

    def active_lengths(self, schedule: ExitSchedule) -> list[int]:
        """Return for each layer the number of tokens, from the first on, that run it."""
        fed = len(self.fed)
        prompt_length = fed if self.is_prompt else len(self.prompt_token_ids)
        return schedule.active_lengths(prompt_length, fed - prompt_length)

    def depths(self, schedule: ExitSchedule) -> list[int]:
        """Return the number of layers that the token at each of `positions` runs."""
        prompt_length = len(self.prompt_token_ids)
        if self.is_prompt:
            return [schedule.prompt_budget(place, len(self.fed)) for place in self.positions]
        first = schedule.prompt_budget(prompt_length - 1, prompt_length)
        return [first, *(schedule.budget(index) for index in range(len(self.positions) - 1))]


def make_score_requests(
    prompts: Prompts,
    continuations: Prompts,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
) -> list[ScoreRequest]:
    """Pair prompts with continuations; tokenize and check them.

    Raises UsageError with the problems of all of them.
    """
    prompt_list = as_prompt_list(prompts)
    continuation_list = as_prompt_list(continuations)
    if len(prompt_list) != len(continuation_list):
        raise UsageError(
            "score",
            f"there are {len(prompt_list)} prompts and {len(continuation_list)} continuations; "
            "give one continuation per prompt",
        )
    requests = []
    problems: list[str] = []
    for index, (prompt, continuation) in enumerate(
        zip(prompt_list, continuation_list, strict=True)
    ):
        try:
            _, prompt_ids = read_prompt(prompt, f"prompt {index}", model, tokenizer)
            _, token_ids = read_prompt(
                continuation, f"continuation {index}", model, tokenizer, is_continuation=True
            )
        except UsageError as error:
            problems += error.problems
            continue
        length = len(prompt_ids) + len(token_ids)
        if length > model.max_seq_len:
            problems.append(
                f"prompt {index} and its continuation have {length} tokens; the bundle holds "
                f"{model.max_seq_len} positions"
            )
        requests.append(ScoreRequest(index, prompt_ids, token_ids))
    if problems:
        raise UsageError("score", *problems)
    return requests


def make_score_request(
    prompt: Prompt,
    continuation: Prompt | None,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
    *,
    top_logprobs: int | None = None,
    followed_by: SamplingParams | None = None,
    client: str = "",
    subject: str = "prompt",
) -> ScoreRequest:
    """Tokenize and check one text; without a continuation, score the prompt's own tokens.

    ``subject`` names the prompt in errors. ``followed_by`` is for sampling one token after the
    scored ones. Raises UsageError.
    """
    top_logprobs = plain(top_logprobs)
    is_count = isinstance(top_logprobs, int) and 0 <= top_logprobs <= model.vocab_size
    if top_logprobs is not None and not is_count:
        allowed = f"0 to {model.vocab_size}"
        raise UsageError("top_logprobs", f"is {shown(top_logprobs)}; allowed: {allowed}, or None")
    if continuation is None:
        _, token_ids = read_prompt(prompt, subject, model, tokenizer)
        made = ScoreRequest(0, token_ids[:1], token_ids[1:], is_prompt=True)
    else:
        (made,) = make_score_requests([prompt], [continuation], model, tokenizer)
    following = None
    if followed_by is not None:
        if (followed_by.n, followed_by.max_tokens) != (1, 1):
            raise UsageError(
                "followed_by",
                f"has n {followed_by.n} and max_tokens {followed_by.max_tokens}; allowed: 1 and "
                "1; for more tokens, send a request",
            )
        token_ids = (*made.prompt_token_ids, *made.token_ids)
        following = make_request(0, token_ids, followed_by, model, tokenizer, subject)
    return replace(made, top_logprobs=top_logprobs, followed_by=following, client=client)
