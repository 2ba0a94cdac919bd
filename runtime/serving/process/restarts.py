"""Policy for restarting workers that died, and for refusing requests that killed them."""

from __future__ import annotations

from collections import deque
from typing import Annotated

from pydantic import Field

from ....engines.checking import Option, ValidatedConfig


class RestartPolicy(ValidatedConfig):
    """Limits on the deaths of a worker, and the delay before each restart.

    ``poison_timeout``: seconds in which a request is refused with which two workers died; then it
    is tried once more.
    """

    max_deaths: Annotated[int, Field(ge=0)] = 3  # in `window` seconds; one more is the end
    window: Annotated[float, Field(gt=0)] = 300.0
    delays: Annotated[tuple[float, ...], Field(min_length=1)] = (0.0, 1.0, 4.0)  # then the last
    poison_timeout: Annotated[float, Option()] = Field(
        default=3600.0,
        gt=0,
        description="seconds in which a request is refused with which two workers died",
    )
    # Seconds in which a start is tried again that fails for want of descriptors, processes, memory.
    start_timeout: Annotated[float, Field(ge=0)] = 300.0


class Deaths:
    """The deaths of one place's workers; times are those of a clock that never jumps."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._times)

    def delay_after(self, now: float) -> float | None:
        """Note a death; seconds until the next start, None if there have been too many.

        Of deaths at 0, 10, 400 and 410 s each leaves one or two in its last 300 s: 0, 1, 0, 1 s.
        """
        policy, times = self._policy, self._times
        times.append(now)
        while times[0] <= now - policy.window:
            times.popleft()
        if len(times) > policy.max_deaths:
            return None
        return policy.delays[min(len(times), len(policy.delays)) - 1]
