"""Request and report of a verification."""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import Field

from ...engines.checking import ValidatedConfig
from ...engines.errors import VerificationError
from ...engines.manifest import Kernels, PrecisionSpec
from ..config import GIB, CheckpointSource
from .answers import AnswerCheck, MeasuredModel

_REPORTED_PROBLEMS = 10


class VerificationRequest(ValidatedConfig):
    """A request to compare the bundle in ``directory``, published or staged, with ``source``.

    ``source.seed`` also draws the test prompts.
    """

    directory: Path
    source: CheckpointSource
    precision: PrecisionSpec | None = Field(
        default=None, description="which the bundle must have, as the kernels; None: its own"
    )
    kernels: Kernels | None = Field(default=None, description="requested with a precision")
    ranges: Path | None = Field(
        default=None, description="with the factors that migrated the weights, if any"
    )
    draft_layer: Path | None = Field(
        default=None, description="directory of the draft layer, if it is to be compared"
    )
    atol: float | None = Field(default=None, gt=0, description="None: by precision")
    max_divergence: float | None = Field(
        default=None, gt=0, description="nats per token; None: by precision, if quantised"
    )
    verify_memory: int = Field(
        default=8 * GIB, ge=0, description="bytes up to which all engines are loaded"
    )


class EngineCheck(MeasuredModel):
    """One engine against its torch module; errors are fractions of a tensor's max |reference|."""

    engine: str
    worst_tensor: str
    error: float
    tolerance: float
    weights_differ: tuple[str, ...] = Field(
        default=(), description="stored tensors that differ from the checkpoint's"
    )
    failure: str | None = Field(default=None, description="why the engine failed to run")
    ran: bool = Field(default=True, description="False: only its weights were compared")

    @property
    def is_inexact(self) -> bool:
        """Return True if the engine ran with the right weights and only its numbers are off."""
        is_sound = self.failure is None and not self.weights_differ
        return is_sound and self.error > self.tolerance

    @property
    def problems(self) -> list[str]:
        """Return the engine's problems, worst first; empty if it passed."""
        problems = []
        if self.failure is not None:
            problems.append(self.failure)
        if not self.error <= self.tolerance:  # NaN is not
            problems.append(
                f"{self.worst_tensor} is off by {self.error:.2g} of its largest value; "
                f"allowed: {self.tolerance:.2g}"
            )
        problems += [f"weights: {text}" for text in self.weights_differ]
        return [f"engine {self.engine}: {problem}" for problem in problems]


class TokenCheck(MeasuredModel):
    """The bundle's greedy tokens at full depth against the reference, position by position.

    The reference reads the bundle's own tokens, so one difference does not hide the next. A token
    that differs is a tie if the reference's logits for the two tokens are at most ``tolerance``
    apart. ``required``: no token may differ except for ties. It is False for a quantised bundle:
    its distributions may diverge from the unquantised model's by ``allowed_divergence``, averaged
    over positions; above ``usual_divergence`` there is a warning.
    """

    compared: int
    equal: int
    ties: int
    worst_gap: float = Field(description="largest gap of a differing token, in logits")
    worst_logprob_error: float
    tolerance: float = Field(description="in logits")
    required: bool
    divergence: float = Field(description="Kullback-Leibler, nats per token")
    usual_divergence: float | None = Field(default=None, description="likewise")
    allowed_divergence: float | None = Field(default=None, description="None: no bound")

    @property
    def problems(self) -> list[str]:
        """Return the problems; empty if the check passed."""
        return [*self._token_problems(), *self._divergence_problems()]

    @property
    def warnings(self) -> list[str]:
        """Return warnings about unusual but allowed results."""
        if self.usual_divergence is None or self.divergence <= self.usual_divergence:
            return []
        return [
            f"{self._cost()}; {self.usual_divergence:g} or less is usual in this precision, "
            f"{self.allowed_divergence:g} is allowed; evaluate the bundle on your data"
        ]

    def _divergence_problems(self) -> list[str]:
        allowed = self.allowed_divergence
        if allowed is None or self.divergence <= allowed:  # NaN is not
            return []
        return [
            f"{self._cost()}; allowed in this precision: {allowed:g}, or set max_divergence; "
            f"{self.equal} of {self.compared} greedy tokens are equal"
        ]

    def _cost(self) -> str:
        return f"rounding costs {self.divergence:.2g} nats per token"

    def _token_problems(self) -> list[str]:
        if not self.required:
            return []
        problems = []
        differing = self.compared - self.equal - self.ties
        if differing:
            problems.append(
                f"{differing} of {self.compared} greedy tokens differ from Hugging Face's, by "
                f"up to {self.worst_gap:.2g} in logits; allowed: ties below {self.tolerance:.2g}"
            )
        if not self.worst_logprob_error <= self.tolerance:
            problems.append(
                f"log-probabilities are off by {self.worst_logprob_error:.2g} from "
                f"Hugging Face's; allowed: {self.tolerance:.2g}"
            )
        return problems

    def summary(self) -> str:
        """Return one line for people."""
        against = "Hugging Face's model" if self.required else "the model before quantising"
        line = (
            f"{self.equal} of {self.compared} greedy tokens after random prompts are those of "
            f"{against}, {self.ties} more are ties"
        )
        if self.allowed_divergence is None:
            return line
        return f"{line}; {self._cost()}, {self.allowed_divergence:g} is allowed"


class VerificationReport(MeasuredModel):
    """Result of a verification, which skips ``tokens`` if engines are broken.

    ``answers`` are those of a bundle with a chat template to built-in questions. ``notes`` say what
    was not checked and why; ``remedies`` are options that round less than a quantised bundle does.
    """

    engines: tuple[EngineCheck, ...]
    tokens: TokenCheck | None
    answers: AnswerCheck | None = None
    notes: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    seconds: float

    @property
    def problems(self) -> list[str]:
        """Return everything that failed: engines, worst first, then tokens."""
        worst_first = sorted(self.engines, key=_excess, reverse=True)
        problems = [problem for check in worst_first for problem in check.problems]
        return problems + (self.tokens.problems if self.tokens is not None else [])

    @property
    def advice(self) -> str | None:
        """Return what to try if rounding may have caused the problems, else None."""
        has_token_problems = self.tokens is not None and bool(self.tokens.problems)
        is_rounding = has_token_problems or any(check.is_inexact for check in self.engines)
        if not (self.remedies and is_rounding):
            return None
        return f"this precision may be too coarse for the checkpoint; try {self._remedies}"

    @property
    def _remedies(self) -> str:
        return ", or ".join(self.remedies)

    @property
    def warnings(self) -> list[str]:
        """Return warnings about unusual but allowed results.

        If there are answers, they are judged instead of the cost on random tokens.
        """
        checked = self.tokens if self.answers is None else self.answers
        *first, last = ("",) if checked is None or not checked.warnings else checked.warnings
        if not last:
            return []
        return [*first, f"{last}, or try {self._remedies}" if self.remedies else last]

    @property
    def verdict(self) -> str:
        """Return the result for a bundle without problems: ``passed`` if all of it was checked."""
        verdict = "passed, in part" if self.notes else "passed"
        if self.answers is not None and self.answers.broken:
            return f"{verdict}, but answers break"
        return verdict

    def summary(self) -> list[str]:
        """Return lines for people about a bundle that passed."""
        lines = []
        ran = [check for check in self.engines if check.ran]
        if ran:
            worst = max(ran, key=_excess)
            lines.append(
                f"{len(ran)} engines give their torch modules' results, within "
                f"{_percent(worst.error)} of the largest value in the worst one, {worst.engine}; "
                f"{_percent(worst.tolerance)} is allowed"
            )
        if still := len(self.engines) - len(ran):
            lines.append(f"{still} engines have the checkpoint's weights, bit for bit")
        if self.tokens is not None:
            lines.append(self.tokens.summary())
        if self.answers is not None:
            lines += self.answers.summary()
        return [*lines, *self.notes]

    def raise_if_failed(self, subject: str) -> None:
        """Raise VerificationError with the worst problems if anything failed."""
        problems = self.problems
        if len(problems) > _REPORTED_PROBLEMS:
            more = f"and {len(problems) - _REPORTED_PROBLEMS} more"
            problems = [*problems[:_REPORTED_PROBLEMS], more]
        if self.advice is not None:
            problems.append(self.advice)
        if problems:
            raise VerificationError(subject, *problems)


def _percent(fraction: float) -> str:
    """Return a fraction as a percentage, never in powers of ten: 0.00012 %."""
    return f"{float(f'{fraction * 100:.2g}'):.10f}".rstrip("0").rstrip(".") + " %"


def _excess(check: EngineCheck) -> float:
    """Return the error divided by the tolerance; infinite for a failed engine or NaN."""
    if check.failure is not None or math.isnan(check.error):
        return math.inf
    return check.error / check.tolerance
