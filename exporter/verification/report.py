"""What a verification is asked, and what it finds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from ...engines.checking import FrozenModel, ValidatedConfig
from ...engines.errors import VerificationError
from ...engines.manifest import Kernels, PrecisionSpec
from ..config import GIB, CheckpointSource

_REPORTED_PROBLEMS = 10

TokenReference = Literal["Hugging Face", "layer by layer"]


class MeasuredModel(FrozenModel):
    """A report with measured numbers: what is infinite or no number stays so in its JSON."""

    model_config = ConfigDict(ser_json_inf_nan="constants")


class VerificationRequest(ValidatedConfig):
    """Hold the bundle in ``directory``, published or staged, against the checkpoint of ``source``.

    ``source.seed`` draws the test prompts too.
    """

    directory: Path
    source: CheckpointSource
    precision: PrecisionSpec = Field(description="what was asked for: the bundle must be just that")
    kernels: Kernels | None = Field(default=None, description="likewise")
    ranges: Path | None = Field(
        default=None, description="with the factors that migrated the weights, if any did"
    )
    atol: float | None = Field(default=None, gt=0, description="None: by precision")
    verify_memory: int = Field(default=8 * GIB, ge=0, description="bytes for the whole reference")


class EngineCheck(MeasuredModel):
    """One engine against its torch module. Errors are fractions of the tensor's max |reference|."""

    engine: str
    worst_tensor: str
    error: float
    tolerance: float
    weights_differ: tuple[str, ...] = Field(
        default=(), description="stored tensors that are not the checkpoint's"
    )
    failure: str | None = Field(default=None, description="why the engine failed to run")
    ran: bool = Field(default=True, description="False: only its weights were compared")

    @property
    def problems(self) -> list[str]:
        """What is wrong with the engine, worst first; empty if it passed."""
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
    that differs is a tie if the reference's logits for the two are less than ``tolerance`` apart.
    ``required`` is False for a quantised bundle, which is held against the unquantised model.
    """

    reference: TokenReference
    compared: int
    equal: int
    ties: int
    worst_gap: float = Field(description="largest gap of a differing token, in logits")
    worst_logprob_error: float
    tolerance: float = Field(description="in logits")
    required: bool

    @property
    def problems(self) -> list[str]:
        """What is wrong; empty if it passed or was not required to."""
        if not self.required:
            return []
        problems = []
        differing = self.compared - self.equal - self.ties
        if differing:
            problems.append(
                f"{differing} of {self.compared} greedy tokens differ from {self.reference}'s, by "
                f"up to {self.worst_gap:.2g} in logits; allowed: ties below {self.tolerance:.2g}"
            )
        if not self.worst_logprob_error <= self.tolerance:
            problems.append(
                f"log-probabilities are off by {self.worst_logprob_error:.2g} from "
                f"{self.reference}'s; allowed: {self.tolerance:.2g}"
            )
        return problems

    def summary(self) -> str:
        """One line for people."""
        against = self.reference if self.required else f"{self.reference}, not quantised"
        return (
            f"{self.equal} of {self.compared} greedy tokens equal the model's ({against}), "
            f"{self.ties} are ties; log-probabilities are off by up to "
            f"{self.worst_logprob_error:.1e}"
        )


class VerificationReport(MeasuredModel):
    """All that a verification found. Without ``tokens`` it stopped at broken engines.

    ``notes`` say what was not checked, and why.
    """

    engines: tuple[EngineCheck, ...]
    tokens: TokenCheck | None
    notes: tuple[str, ...] = ()
    seconds: float

    @property
    def problems(self) -> list[str]:
        """Everything that failed: engines worst first, then tokens."""
        worst_first = sorted(self.engines, key=_excess, reverse=True)
        problems = [problem for check in worst_first for problem in check.problems]
        return problems + (self.tokens.problems if self.tokens is not None else [])

    def summary(self) -> list[str]:
        """Lines for people about a bundle that passed."""
        lines = []
        ran = [check for check in self.engines if check.ran]
        if ran:
            worst = max(ran, key=_excess)
            lines.append(
                f"{len(ran)} engines equal their torch modules; the worst is {worst.engine}, "
                f"{worst.worst_tensor}, off by {worst.error:.1e} of {worst.tolerance:.0e} allowed"
            )
        if still := len(self.engines) - len(ran):
            lines.append(f"{still} engines hold the checkpoint's weights, bit for bit")
        if self.tokens is not None:
            lines.append(self.tokens.summary())
        return [*lines, *self.notes]

    def raise_if_failed(self, subject: str) -> None:
        """Raise VerificationError with the worst problems if anything failed."""
        problems = self.problems
        if len(problems) > _REPORTED_PROBLEMS:
            more = f"and {len(problems) - _REPORTED_PROBLEMS} more"
            problems = [*problems[:_REPORTED_PROBLEMS], more]
        if problems:
            raise VerificationError(subject, *problems)


def _excess(check: EngineCheck) -> float:
    """How many times the tolerance the error is; infinite if the engine failed or gave NaN."""
    if check.failure is not None or math.isnan(check.error):
        return math.inf
    return check.error / check.tolerance
