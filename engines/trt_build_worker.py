"""The process that builds one plan: reads a request on stdin, writes JSON lines on stdout.

    {"progress": [phase, step, steps]} ...  then one of  {"report": {...}}  {"error": {...}}

Its argument is the file to write. SIGINT and SIGTERM make the builder stop at its next step.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from .errors import EngineBuildError, SkipDecError
from .timing_cache import attach_timing_cache, merge_timing_cache
from .trt_build import BuildOptions, PlanReport, PlanRequest
from .trt_inspection import failure_hint, layer_counts, network_problems, warning_problems
from .trt_library import LOGGER_NAME, TensorRtLibrary, load_library, logger


class Progress:
    """Writes the builder's steps and tells whether it may go on; called from its threads."""

    def __init__(self, lines: IO[str]) -> None:
        self.is_cancelled = False
        self._lines = lines
        self._lock = threading.Lock()
        self._steps: dict[str, int] = {}  # of each phase under way

    def cancel(self, *_: object) -> None:
        """Stop at the next step; also a signal handler."""
        self.is_cancelled = True

    def start(self, phase: str, steps: int) -> None:
        """A phase of ``steps`` steps begins."""
        self._steps[phase] = steps

    def step(self, phase: str, step: int) -> bool:
        """Step ``step`` of ``phase`` is done; False stops the build."""
        self.write("progress", [phase, step + 1, self._steps.get(phase, step + 1)])
        return not self.is_cancelled

    def finish(self, phase: str) -> None:
        """A phase has ended, early perhaps."""
        self._steps.pop(phase, None)

    def write(self, kind: str, content: Any) -> None:  # noqa: ANN401  (any JSON value)
        """Write one line; a reader who has gone away wants no plan."""
        try:
            with self._lock:
                self._lines.write(json.dumps({kind: content}) + "\n")
                self._lines.flush()
        except BrokenPipeError:
            self.cancel()


class Messages(logging.Handler):
    """Keeps what TensorRT logs from warnings on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        self._records.append(record)

    def of(self, *levels: int) -> tuple[str, ...]:
        """The messages of ``levels``, each once, in order."""
        return tuple(
            dict.fromkeys(
                record.getMessage() for record in self._records if record.levelno in levels
            )
        )

    @property
    def errors(self) -> tuple[str, ...]:
        """What went wrong, in TensorRT's words."""
        return self.of(logging.ERROR, logging.CRITICAL)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What TensorRT warns of."""
        return self.of(logging.WARNING)


class PlanBuilder:
    """Builds one request with one library."""

    def __init__(self, library: TensorRtLibrary, request: PlanRequest, progress: Progress) -> None:
        self._library = library
        self._request = request
        self._progress = progress
        self._messages = Messages()
        log = logging.getLogger(LOGGER_NAME)
        log.addHandler(self._messages)
        log.propagate = False

    def build(self, output: Path) -> PlanReport:
        """Build, check, and write ``output``, on disk on return."""
        start, trt = perf_counter(), self._library.module
        builder = trt.Builder(logger(self._library))
        # Version 11 knows no other networks; 10 makes them only if asked to.
        flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        network = builder.create_network(flags)
        self._parse(network)
        self._check(network)
        config = self._config(builder, network)
        plan = self._build(builder, network, config)
        with output.open("xb") as file:
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
            f"the parser refuses node {error.node_name() or error.node()}: {error.desc()}"
            for error in found
        ]
        raise self._error(*(described or self._messages.errors))

    def _check(self, network: Any) -> None:  # noqa: ANN401
        request = self._request
        problems = [
            *network_problems(network, request.inputs, request.outputs, request.expected_layers),
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
        """Without a choice TensorRT-RTX would build for all GPUs; the full library has none."""
        if not self._library.compute_capabilities:
            return
        wanted = options.compute_capability
        current = self._library.module.ComputeCapability.CURRENT
        config.num_compute_capabilities = 1
        value = current if wanted is None else self._library.compute_capability(wanted)
        if not config.set_compute_capability(value, 0):
            raise self._error(f"can't build for compute capability {wanted or 'of this GPU'}")

    def _add_profiles(self, builder: Any, network: Any, config: Any) -> None:  # noqa: ANN401
        names = {network.get_input(index).name for index in range(network.num_inputs)}
        for index, shapes in enumerate(self._request.profiles):
            if shapes.keys() != names:
                raise self._error(
                    f"profile {index} gives shapes of {sorted(shapes)}; inputs: {sorted(names)}"
                )
            profile = builder.create_optimization_profile()
            try:
                for name, (smallest, usual, largest) in shapes.items():
                    profile.set_shape(name, smallest, usual, largest)
                is_accepted = config.add_optimization_profile(profile) == index
            except (RuntimeError, ValueError) as error:
                raise self._error(f"profile {index} is refused: {error}; {shapes}") from error
            if not is_accepted:
                raise self._error(f"profile {index} is refused: {shapes}", *self._messages.errors)

    def _build(self, builder: Any, network: Any, config: Any) -> memoryview:  # noqa: ANN401
        path, cache = self._request.options.timing_cache, None
        if path is not None and self._library.target == "tensorrt":  # in RTX it has no effect
            cache = attach_timing_cache(path, config)
        plan = builder.build_serialized_network(network, config)
        if self._progress.is_cancelled:
            raise self._error("was cancelled")
        errors = self._messages.errors
        if plan is None or plan.nbytes == 0:
            hint = failure_hint(errors)
            raise self._error(*(errors or ("the builder made no plan",)), *([hint] if hint else []))
        if problems := warning_problems(self._messages.warnings):
            raise self._error(*problems)
        if path is not None and cache is not None:
            merge_timing_cache(path, config, cache)
        return memoryview(plan)

    def _error(self, *problems: str) -> EngineBuildError:
        return EngineBuildError(f"engine {self._request.engine}", *problems)


def _progress_monitor(trt: Any, progress: Progress) -> Any:  # noqa: ANN401
    """An ``IProgressMonitor`` in front of ``progress``."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Forwards to ``progress``."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            """Called by TensorRT."""
            progress.start(phase_name, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            """Called by TensorRT; False cancels the build."""
            return progress.step(phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            """Called by TensorRT."""
            progress.finish(phase_name)

    return Monitor()


def main() -> None:
    """Build what stdin asks for."""
    lines = _private_stdout()
    progress = Progress(lines)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, progress.cancel)
    request = PlanRequest.model_validate_json(sys.stdin.buffer.read())
    try:
        library = load_library(request.options.target)
        report = PlanBuilder(library, request, progress).build(Path(sys.argv[1]))
    except SkipDecError as error:
        kind = type(error).__name__
        progress.write(
            "error", {"kind": kind, "subject": error.subject, "problems": error.problems}
        )
    else:
        progress.write("report", report.model_dump(mode="json"))


def _private_stdout() -> IO[str]:
    """Take stdout for our lines alone; what the library prints goes to stderr."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lines


if __name__ == "__main__":
    main()
