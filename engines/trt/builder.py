"""In-process parsing, checking and compilation of one graph with TensorRT, which may crash."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from typing_extensions import override

from ..bundle import replace_file
from ..bundle.place import open_own
from ..documents import naming_file
from ..errors import EngineBuildError, EnvironmentMismatchError
from ..host.worker import WorkerLines
from .build import BuildOptions, PlanReport, PlanRequest
from .checks import (
    failure_hint,
    layer_counts,
    network_problems,
    warning_problems,
    worth_reporting,
)
from .library import LOGGER_NAME, TensorRtLibrary, logger


class BuildProgress:
    """Reports the builder's steps and cancels it on request; called from the builder's threads."""

    def __init__(self, lines: WorkerLines) -> None:
        self._is_cancelled = False
        self._lines = lines
        self._steps: dict[str, int] = {}  # of each phase in progress

    @property
    def is_cancelled(self) -> bool:
        """Return True if a signal arrived or the parent no longer reads."""
        return self._is_cancelled or not self._lines.is_read

    def cancel(self, *_: object) -> None:
        """Stop at the next step; also a signal handler."""
        self._is_cancelled = True

    def start(self, phase: str, steps: int) -> None:
        """Begin a phase of ``steps`` steps."""
        self._steps[phase] = steps

    def step(self, phase: str, step: int) -> bool:
        """Report that step ``step`` of ``phase``, from 0, has finished; return False to stop."""
        self._lines.write("progress", [phase, step + 1, self._steps.get(phase, step + 1)])
        return not self.is_cancelled

    def finish(self, phase: str) -> None:
        """End a phase, possibly early."""
        self._steps.pop(phase, None)


class Messages(logging.Handler):
    """Collects TensorRT's log messages of level warning and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._records: list[logging.LogRecord] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)

    def _at(self, *levels: int) -> tuple[str, ...]:
        """Return the distinct messages of ``levels`` in order."""
        return tuple(
            dict.fromkeys(
                record.getMessage() for record in self._records if record.levelno in levels
            )
        )

    @property
    def errors(self) -> tuple[str, ...]:
        """Return TensorRT's error messages."""
        return self._at(logging.ERROR, logging.CRITICAL)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return TensorRT's warnings that are worth reporting."""
        return tuple(filter(worth_reporting, self._at(logging.WARNING)))


class PlanBuilder:
    """Builds one request with one library."""

    def __init__(
        self, library: TensorRtLibrary, request: PlanRequest, progress: BuildProgress
    ) -> None:
        self._library = library
        self._request = request
        self._progress = progress
        self._messages = Messages()
        log = logging.getLogger(LOGGER_NAME)
        log.addHandler(self._messages)
        log.propagate = False

    def build(self, output: Path) -> PlanReport:
        """Build and check the plan, and write it durably to ``output``."""
        start, trt = perf_counter(), self._library.module
        builder = trt.Builder(logger(self._library))
        # Version 11 only has strongly typed networks; version 10 needs the flag.
        flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        network = builder.create_network(flags)
        self._parse(network)
        self._check(network)
        config = self._config(builder, network)
        plan = self._build(builder, network, config)
        with naming_file(output), output.open("xb") as file:
            size = file.write(plan)
            file.flush()
            os.fsync(file.fileno())
        return PlanReport(
            engine=self._request.engine,
            plan_size=size,
            seconds=perf_counter() - start,
            layer_counts=layer_counts(network),
            version=self._library.version,
            warnings=self._messages.warnings,
        )

    def _parse(self, network: Any) -> None:  # noqa: ANN401  (trt.INetworkDefinition)
        trt = self._library.module
        parser = trt.OnnxParser(network, logger(self._library))
        if parser.parse(self._request.graph, str(self._request.weights_path)):
            return
        found = [parser.get_error(index) for index in range(parser.num_errors)]
        described = [
            f"the parser rejects node {error.node_name() or error.node()}: {error.desc()}"
            for error in found
        ]
        raise self._error(*(described or self._messages.errors))

    def _check(self, network: Any) -> None:  # noqa: ANN401
        request = self._request
        problems = [
            *network_problems(
                network, request.inputs, request.outputs, request.expected_layers, self._library
            ),
            *warning_problems(self._messages.warnings),
        ]
        if problems:
            raise self._error(*problems)

    def _config(self, builder: Any, network: Any) -> Any:  # noqa: ANN401  (trt.IBuilderConfig)
        trt, options = self._library.module, self._request.options
        config = builder.create_builder_config()
        config.builder_optimization_level = options.optimization_level
        config.progress_monitor = _progress_monitor(trt, self._progress)
        if options.workspace is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
        if options.hardware_compatible:
            config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
        if options.version_compatible:
            config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
        self._choose_gpu(config, options)
        self._add_profiles(builder, network, config)
        return config

    def _choose_gpu(self, config: Any, options: BuildOptions) -> None:  # noqa: ANN401
        """Select the GPU: TensorRT-RTX would build for all; the full library has no choice."""
        known = self._library.compute_capabilities
        if not known:
            return
        wanted = options.compute_capability
        current = self._library.module.ComputeCapability.CURRENT
        config.num_compute_capabilities = 1
        value = current if wanted is None else known[wanted]
        if not config.set_compute_capability(value, 0):
            raise self._error(f"can't build for compute capability {wanted or 'of this GPU'}")

    def _add_profiles(self, builder: Any, network: Any, config: Any) -> None:  # noqa: ANN401
        names = {network.get_input(index).name for index in range(network.num_inputs)}
        for index, shapes in enumerate(self._request.profiles):
            if shapes.keys() != names:
                raise self._error(
                    f"profile {index} has shapes for {sorted(shapes)}; inputs: {sorted(names)}"
                )
            profile = builder.create_optimization_profile()
            try:
                for name, (smallest, usual, largest) in shapes.items():
                    profile.set_shape(name, smallest, usual, largest)
                is_accepted = config.add_optimization_profile(profile) == index
            except (RuntimeError, ValueError) as error:
                raise self._error(f"profile {index} is rejected: {error}; {shapes}") from error
            if not is_accepted:
                raise self._error(f"profile {index} is rejected: {shapes}", *self._messages.errors)

    def _build(self, builder: Any, network: Any, config: Any) -> memoryview:  # noqa: ANN401
        path, cache = self._request.options.timing_cache, None
        if path is not None and self._library.target == "tensorrt":  # RTX ignores it
            cache = attach_timing_cache(path, config)
        plan = builder.build_serialized_network(network, config)
        if self._progress.is_cancelled:
            raise self._error("was cancelled")
        errors = self._messages.errors
        if plan is None or plan.nbytes == 0:
            hint = failure_hint(errors)
            raise self._error(
                *(errors or ("the builder returned no plan",)), *([hint] if hint else [])
            )
        if problems := warning_problems(self._messages.warnings):
            raise self._error(*problems)
        if path is not None and cache is not None:
            merge_timing_cache(path, config, cache)
        return memoryview(plan)

    def _error(self, *problems: str) -> EngineBuildError:
        return EngineBuildError(f"engine {self._request.engine}", *problems)


def _progress_monitor(trt: Any, progress: BuildProgress) -> Any:  # noqa: ANN401
    """Return an ``IProgressMonitor`` that forwards to ``progress``."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        @override
        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            progress.start(phase_name, num_steps)

        @override
        def step_complete(self, phase_name: str, step: int) -> bool:
            return progress.step(phase_name, step)

        @override
        def phase_finish(self, phase_name: str) -> None:
            progress.finish(phase_name)

    return Monitor()


def attach_timing_cache(path: Path, config: Any) -> Any:  # noqa: ANN401  (trt.IBuilderConfig)
    """Give ``config`` a timing cache with the content of ``path``; return it for merging later.

    Raises EnvironmentMismatchError if the file is from another TensorRT or GPU.
    """
    cache = _timing_cache(path, config)
    if not config.set_timing_cache(cache, ignore_mismatch=False):
        raise _mismatch(path)
    return cache


def merge_timing_cache(path: Path, config: Any, cache: Any) -> None:  # noqa: ANN401
    """Merge this build's measurements into what other processes have written to ``path``."""
    with _locked(path):
        merged = _timing_cache(path, config)
        if not merged.combine(cache, ignore_mismatch=False):
            raise _mismatch(path)
        replace_file(path, bytes(memoryview(merged.serialize())))


def _timing_cache(path: Path, config: Any) -> Any:  # noqa: ANN401
    content = path.read_bytes() if path.exists() else b""
    cache = config.create_timing_cache(content)
    if cache is None:
        raise _mismatch(path)
    return cache


def _mismatch(path: Path) -> EnvironmentMismatchError:
    return EnvironmentMismatchError(
        f"timing cache {path}",
        "was made by another version of TensorRT or on another GPU; "
        "delete it or name another file as timing_cache",
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file beside ``path``, which is kept for waiting processes."""
    with os.fdopen(open_own(path.with_name(f".{path.name}.lock")), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
