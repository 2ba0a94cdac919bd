"""Requests run in order of arrival, within slots and memory, with steps between prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipdec import UsageError
from skipdec.runtime.admission import Admission, parse_admission
from skipdec.runtime.scheduling.scheduler import (
    Action,
    Chunk,
    Decode,
    Prefill,
    Scheduler,
    Wait,
)

SLOTS = 4
TOKENS = 32


@dataclass(frozen=True)
class Job:
    number: int
    prompt_length: int
    num_rows: int = 1
    client: str = ""


def scheduler(
    admission: str = "fcfs", tokens: int = TOKENS, *, fills_first: bool = False
) -> Scheduler:
    return Scheduler(
        SLOTS,
        tokens,
        parse_admission(admission),
        lambda jobs: True,
        lambda job: job.prompt_length > tokens,
        fills_first=fills_first,
    )


def is_long(job: Job) -> bool:
    return job.prompt_length > TOKENS


def test_only_prompts_of_similar_length_share_a_call() -> None:
    engine = scheduler(tokens=320)
    for number, length in enumerate((100, 30, 120, 90)):
        engine.add(Job(number, length))
    assert engine.next_action(0) == Prefill(
        (0, 2)
    )  # 100 and 30 differ too much, 3 x 120 are too many
    assert engine.next_action(0) == Decode()


def test_short_prompts_share_a_call_up_to_16_tokens_of_padding() -> None:
    engine = scheduler(tokens=100)
    for number, length in enumerate((3, 19, 20)):
        engine.add(Job(number, length))
    assert engine.next_action(0) == Prefill((0, 1))  # 16 tokens of padding, not 17


def test_a_call_that_fills_first_runs_all_prompts_before_steps() -> None:
    engine = scheduler(fills_first=True)
    for number in range(5):
        engine.add(Job(number, 20))
    actions = [engine.next_action(0) for _ in range(5)]
    assert actions == [*(Prefill((number,)) for number in range(4)), Decode()]


def test_a_call_counts_padding_towards_its_token_limit() -> None:
    engine = scheduler()
    for number, length in enumerate((10, 8, 12, 11)):
        engine.add(Job(number, length))
    assert engine.next_action(0) == Prefill((0, 1))  # 3 x 12 are 36
    assert engine.next_action(0) == Decode()
    assert engine.next_action(0) == Prefill((2, 3))


def test_a_long_prompt_runs_in_chunks_with_steps_between() -> None:
    engine = scheduler()
    engine.add(Job(0, 5))
    engine.add(Job(1, 70))
    assert engine.next_action(0) == Prefill((0,))
    for is_first in (True, False, False):
        assert engine.next_action(0) == Decode()
        assert engine.next_action(0) == Chunk(1, is_first)
        assert engine.in_chunks == 1
    assert engine.running_rows == 1
    engine.prompt_ran()
    assert (engine.running_rows, engine.in_chunks) == (2, None)


def test_no_request_overtakes_one_that_waits_for_memory() -> None:
    fitting = {0: True, 1: False, 2: True}
    engine = Scheduler(
        SLOTS,
        TOKENS,
        parse_admission("fcfs"),
        lambda jobs: all(fitting[job.number] for job in jobs),
        is_long,
    )
    for number in fitting:
        engine.add(Job(number, 4))
    assert engine.next_action(0) == Prefill((0,))
    assert [engine.next_action(0) for _ in range(3)] == [Decode()] * 3
    fitting[1] = True
    assert engine.next_action(0) == Prefill((1, 2))


@pytest.mark.parametrize("admission", ["fcfs", "gang:min_free=2,hold_ms=0"])
def test_clients_take_turns_and_keep_their_own_order(admission: str) -> None:
    engine = scheduler(admission)
    for number, client in enumerate("aaaabba"):
        engine.add(Job(number, 20, client=client))
    engine.add(Job(7, 20, client="c"))
    order = [0, 4, 7, 1, 5, 2, 3, 6]
    begun: list[int] = []
    while engine.is_busy:
        match engine.next_action(0):
            case Prefill((number,)):
                begun.append(number)
                engine.row_ended(number)
    assert begun == order


def test_a_returning_client_queues_after_waiting_ones() -> None:
    """Else one client's sequence of small requests would overtake all others."""
    engine = scheduler()
    for number, client in enumerate("ab"):
        engine.add(Job(number, 20, client=client))
    assert engine.next_action(0) == Prefill((0,))
    engine.row_ended(0)
    engine.add(Job(2, 20, client="a"))
    assert engine.next_action(0) == Prefill((1,))


def test_a_cancelled_request_costs_its_client_no_turn() -> None:
    engine = scheduler()
    for number, client in enumerate("aab"):
        engine.add(Job(number, 20, client=client))
    engine.cancel(0)
    assert [engine.next_action(0) for _ in range(3)] == [Prefill((1,)), Decode(), Prefill((2,))]


def test_gang_admission_waits_at_most_hold_ms() -> None:
    engine = scheduler("gang:min_free=2,hold_ms=8")
    engine.add(Job(0, 4))
    assert engine.next_action(0.0) == Prefill((0,))  # nothing runs
    engine.next_action(0.0)
    engine.add(Job(1, 4))
    assert engine.next_action(1.0) == Decode()
    assert engine.next_action(1.007) == Decode()
    assert engine.next_action(1.0081) == Prefill((1,))
    engine.next_action(1.01)
    for number in (2, 3):
        engine.add(Job(number, 4))
    assert engine.next_action(2.0) == Prefill((2, 3))


def test_the_last_request_of_a_call_is_never_held() -> None:
    engine = scheduler("gang:min_free=2,hold_ms=1000000", fills_first=True)
    engine.add(Job(0, 5))
    assert engine.next_action(0) == Prefill((0,))
    assert engine.next_action(0) == Decode()
    engine.add(Job(1, 5))
    assert engine.next_action(0) == Prefill((1,))


@pytest.mark.parametrize(
    "text",
    [
        *("", "fifo", "fcfs:min_free=1", "gang:min_free=-1", "gang:hold=3", "gang:hold_ms"),
        "gang:min_free=" + "9" * 5000,
        "gang:min_free=2,min_free=3",
    ],
)
def test_an_invalid_admission_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="admission"):
        parse_admission(text)


def test_an_admission_is_parsed_with_its_parameters() -> None:
    assert parse_admission("gang:min_free=4") == Admission(min_free=4, hold_ms=8)


@dataclass
class Model:
    """Records the actions of a run and checks that they keep the rules."""

    scheduler: Scheduler
    limit: int
    arrived: list[Job] = field(default_factory=list)
    left: dict[int, int] = field(default_factory=dict)  # remaining steps of running jobs
    begun: list[int] = field(default_factory=list)
    done_of: dict[int, int] = field(default_factory=dict)  # tokens run of chunked prompts
    prompts_in_a_row: int = 0

    def do(self, action: Action, steps: Sequence[int]) -> None:
        jobs = {job.number: job for job in self.arrived}
        match action:
            case Prefill(numbers):
                lengths = [jobs[number].prompt_length for number in numbers]
                assert max(lengths) * len(lengths) <= TOKENS
                assert max(lengths) <= max(2 * min(lengths), min(lengths) + 16)
                for number in numbers:
                    self.begin(jobs[number], steps)
                self.prompt_ran()
            case Chunk(number, is_first):
                assert is_first == (number not in self.done_of)
                self.done_of[number] = self.done_of.get(number, 0) + TOKENS
                if self.done_of[number] >= jobs[number].prompt_length:
                    self.scheduler.prompt_ran()
                    self.begin(jobs[number], steps)
                self.prompt_ran()
            case Decode():
                assert self.left
                self.prompts_in_a_row = 0
                for number in list(self.left):
                    self.left[number] -= 1
                    if not self.left[number]:
                        del self.left[number]
                        for _ in range(jobs[number].num_rows):
                            self.scheduler.row_ended(number)
            case Wait():
                assert not self.left
        rows = sum(jobs[number].num_rows for number in self.left)
        assert rows == self.scheduler.running_rows <= SLOTS
        assert sum(jobs[number].prompt_length for number in self.left) <= self.limit

    def waiting(self) -> list[Job]:
        begun = {*self.begun, *self.done_of}
        return [job for job in self.arrived if job.number not in begun]

    def begin(self, job: Job, steps: Sequence[int]) -> None:
        waited = [one.number for one in self.arrived if one.number not in self.begun]
        assert job.number in waited
        self.begun.append(job.number)
        self.left[job.number] = steps[job.number]

    def prompt_ran(self) -> None:
        self.prompts_in_a_row += 1
        assert self.prompts_in_a_row == 1 or len(self.left) <= SLOTS


@given(
    jobs=st.lists(
        st.tuples(
            st.integers(1, 100), st.integers(1, SLOTS), st.integers(1, 9), st.sampled_from("abc")
        ),
        max_size=12,
    ),
    pauses=st.lists(st.integers(0, 4), min_size=12, max_size=12),
    admission=st.sampled_from(["fcfs", "gang:min_free=2,hold_ms=3"]),
)
def test_every_request_runs_once_within_slots_and_memory(
    jobs: list[tuple[int, int, int, str]], pauses: list[int], admission: str
) -> None:
    """While a client waits, each other client leads at most one call for prompts."""
    limit = 150
    running: Model

    def fits(wanted: Sequence[Job]) -> bool:
        used = sum(job.prompt_length for job in running.arrived if job.number in running.left)
        return used + sum(job.prompt_length for job in wanted) <= limit

    running = Model(Scheduler(SLOTS, TOKENS, parse_admission(admission), fits, is_long), limit)
    steps = [count for _, _, count, _ in jobs]
    led_since: dict[str, set[str]] = {}  # clients that led a call while this one waited
    now, to_come = 0.0, list(enumerate(jobs))
    pause = 0
    for _ in range(2000):
        if to_come and pause <= 0:
            number, (length, rows, _, client) = to_come.pop(0)
            job = Job(number, length, rows, client)
            running.arrived.append(job)
            running.scheduler.add(job)
            pause = pauses[number]
        action = running.scheduler.next_action(now)
        if isinstance(action, Prefill):
            _take_turn(led_since, running.waiting(), action.numbers)
        elif isinstance(action, Chunk) and action.is_first:
            _take_turn(led_since, running.waiting(), (action.number,))
        running.do(action, steps)
        now, pause = now + 0.001, pause - 1
        if not to_come and not running.left and len(running.begun) == len(jobs):
            break
    assert sorted(running.begun) == list(range(len(jobs)))


def _take_turn(led_since: dict[str, set[str]], jobs: Sequence[Job], numbers: Sequence[int]) -> None:
    clients = {job.number: job.client for job in jobs}
    leader, served = clients[numbers[0]], {clients[number] for number in numbers}
    assert numbers[0] == min(number for number in clients if clients[number] == leader)
    waiting = {client for number, client in clients.items() if number not in numbers}
    for client in waiting - served:
        leaders = led_since.setdefault(client, set())
        assert leader not in leaders
        leaders.add(leader)
    for client in served | (led_since.keys() - waiting):
        led_since.pop(client, None)
