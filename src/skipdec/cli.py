"""The ``skipdec`` command line; each command's module is imported only when it runs."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from .engines.host.console import discard_stdout, prepare_streams, reports_errors
from .engines.host.installation import own_version
from .engines.host.processor import restart_with_huge_pages
from .engines.host.signals import Interrupts

if TYPE_CHECKING:
    from .runtime.commands.checkpoints import ExportChoice

# Name → the module that has a function of that name and its EXAMPLES, or a `register` that adds the
# command; and the command's purpose.
_COMMANDS = {
    "export": ("exporter.commands.export", "Compile a checkpoint to a verified bundle."),
    "build": ("exporter.commands.build", "Build a bundle's canonical engines for another target."),
    "compare": ("exporter.commands.compare", "Find where two ways to run engines diverge."),
    "verify": ("exporter.commands.verify", "Check a bundle's bytes, engines and greedy tokens."),
    "bench": ("runtime.commands.bench", "Measure latency, throughput and speed-ups."),
    "doctor": ("runtime.commands.doctor", "Show what works on this machine and what is missing."),
    "chat": ("runtime.commands.chat", "Hold a conversation with a model."),
    "generate": ("runtime.commands.generate", "Continue prompts with a bundle's engines."),
    "inspect": ("runtime.commands.inspect", "Show a bundle's engines, tensors and memory."),
    "serve": ("runtime.commands.serve", "Serve bundles over OpenAI's completions and chat APIs."),
    "schedule": ("runtime.commands.schedule", "Show, draw or change an exit schedule."),
    "triton": ("runtime.commands.triton", "Set up bundles as models of Triton Inference Server."),
    "calibrate": ("calib.commands.calibrate", "Measure ranges of activations for int8 and fp8."),
    "round": ("calib.commands.round", "Round weights to int4 by their effect on outputs."),
    "evaluate": ("calib.commands.evaluate", "Compare schedules by texts, metrics and time."),
    "tune": ("calib.commands.tune", "Fine-tune a model with the schedule that it will run."),
    "ngrams": ("calib.commands.ngrams", "Count n-grams of a model's texts, for its drafts."),
    "fit": ("calib.commands.fit", "Choose the exit schedule that reaches a goal."),
}


class _Commands(TyperGroup):
    """Lists commands without importing them, which would make ``--help`` slow."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  (typer's own)
        name, _, rest = super().resolve_command(ctx, args)
        return name, _load(str(name)), rest


def _load(name: str) -> Any:  # noqa: ANN401  (typer's own type of commands)
    module = import_module(f".{_COMMANDS[name][0]}", __package__)
    if name in ("chat", "generate", "serve"):
        from .runtime.commands import checkpoints

        checkpoints.exporter = _cached_bundle
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    if hasattr(module, "register"):
        module.register(app)
    else:
        app.command(name, epilog=module.EXAMPLES)(getattr(module, name))
    command = get_command(app)
    return command.commands[name] if isinstance(command, TyperGroup) else command


def _cached_bundle(model: str, choice: ExportChoice, quiet: bool) -> Path | None:
    from .exporter.pipeline.cached import cached_bundle

    return cached_bundle(model, choice.to_dict(), quiet=quiet)


def build_app() -> typer.Typer:
    """Return the command-line application with the commands of every folder."""
    app = typer.Typer(
        name="skipdec",
        help="Compile language models layer by layer; run only the layers that each token needs.",
        no_args_is_help=True,
        cls=_Commands,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    for name, (_, purpose) in _COMMANDS.items():
        app.command(name, help=purpose)(_not_loaded)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"skipdec {own_version()}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version and exit.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Hold the options that come before a command."""


def _not_loaded() -> None:
    """Placeholder in the list of commands that never runs."""


def main() -> None:
    """Entry point of ``skipdec``."""
    if sys.argv[1:2] in (["chat"], ["generate"], ["bench"], ["evaluate"], ["fit"]):
        restart_with_huge_pages()
    _run(sys.argv[1:])


def export_main() -> None:
    """Entry point of ``skipdec-export``: the same as ``skipdec export``."""
    _run(["export", *sys.argv[1:]])


def _run(arguments: list[str]) -> None:
    """Run a command and exit with its code, even if stdout fails or a signal arrives.

    An export exits without tearing down torch, which would take a second or two.
    """
    prepare_streams()
    interrupts = Interrupts()
    interrupts.install()
    code: str | int | None = 0
    try:
        reports_errors(build_app())(arguments, prog_name="skipdec")
    except SystemExit as end:
        code = end.code
    except BaseException:
        if interrupts.received is None:
            raise
        code = 1  # a library may turn the interruption into its own error
    interrupts.uninstall()
    if interrupts.received is not None and code:
        code = 128 + interrupts.received
        sys.stderr.write("interrupted\n")
    code = _flushed(code)
    if arguments[:1] == ["export"] and "torch" in sys.modules and isinstance(code, int):
        os._exit(code)
    sys.exit(code)


def _flushed(code: str | int | None) -> str | int | None:
    """Flush stdout; return the exit code, 1 if stdout could not take all the output."""
    try:
        sys.stdout.flush()
    except OSError as error:
        discard_stdout()
        if not code and error.errno != errno.EPIPE:  # EPIPE: the reader has seen enough
            sys.stderr.write(f"error: stdout | can't be written ({error.strerror})\n")
        code = code or 1
    sys.stderr.flush()
    return code
