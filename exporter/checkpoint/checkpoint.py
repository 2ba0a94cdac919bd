"""Opening of a checkpoint: structure, tensors, tokenizer, schedule and prompt template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...engines.documents import read_object
from ...engines.errors import CheckpointError, ScheduleError, few
from ...engines.manifest import EARLY_EXIT, TUNED_SCHEDULE, ModelSpec, json_digest
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.text import format_schedule, parse_schedule
from ...runtime.tokens.tokenizer import Tokenizer
from ..architecture.architecture import decoder_of, expected_tensors, family_config, hub_id
from ..architecture.model_config import model_spec
from ..config import CheckpointSource, LoadFormat
from .chat import CheckpointChat, parse_tokenizer, read_chat, template_file
from .dummy import DummyReader
from .formats import map_bin, map_safetensors
from .hub import CheckpointDirectory, locate
from .mistaken import is_lfs_pointer, mistaken
from .reader import CheckpointReader, MappedReader, StoredTensor
from .template import read_template
from .tokenizer import byte_level_tokenizer, read_tokenizer, with_tokenizer_end

_VALUE_HEAD = "v_head."  # TRL's value head for reinforcement learning, unused in generation
_EARLY_EXIT_NAME = "layerskip-"  # of facebook/layerskip-llama3.2-1B, whose config is any LLaMA's
_SCHEDULE_FILES = ("schedule.json", "training_schedule.json")
_FORMATS: dict[LoadFormat, tuple[str, Callable[[Path], dict[str, StoredTensor]]]] = {
    "safetensors": ("model.safetensors", map_safetensors),
    "bin": ("pytorch_model.bin", map_bin),
}


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; ``warnings`` are sentences for the user.

    ``directory`` is None for a published architecture with random weights. ``exits_early``: the
    model was trained to exit after any layer through the final norm and head (LayerSkip, arXiv
    2404.16710), so that it can run its lowest layers alone (placement ``bottom``).
    """

    model: ModelSpec
    reader: CheckpointReader
    load_format: LoadFormat
    directory: Path | None = None
    revision: str | None = None
    tokenizer_json: bytes | None = None
    schedule: ExitSchedule | None = None
    prompt_template: str | None = None
    exits_early: bool = False
    chat: CheckpointChat | None = None
    warnings: tuple[str, ...] = field(default=())

    @property
    def tuned_schedule(self) -> ExitSchedule | None:
        """Return the reduced schedule that the weights were tuned with, if any."""
        schedule = self.schedule
        if schedule is None or schedule.is_full or self.load_format == "dummy":
            return None
        return schedule if schedule.num_layers == self.model.num_layers else None

    @cached_property
    def content(self) -> str:
        """Return the SHA-256 of all tensors, read once; file format and sharding don't matter."""
        ids = {name: self.reader.content_id(name) for name in expected_tensors(self.model)}
        return json_digest(ids)

    def require_tokenizer(self) -> bytes:
        """Return tokenizer.json. Raises CheckpointError if it or an end of text is missing."""
        missing = []
        if self.tokenizer_json is None:
            missing.append("has no tokenizer files; put tokenizer.json beside the weights")
        if self.model.eos_token_id is None:
            missing.append("has no eos_token_id; name the token that ends a text in config.json")
        if missing:
            raise CheckpointError(self.model.name, *missing)
        assert self.tokenizer_json is not None
        return self.tokenizer_json

    def open_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, which the caller closes. Raises like `require_tokenizer`."""
        return parse_tokenizer(self.require_tokenizer(), self.chat, self.model.name)

    def source(self) -> dict[str, str]:
        """Return the origin of the weights for the manifest."""
        source = {"load_format": str(self.load_format), "content": self.content}
        if self.tuned_schedule is not None:
            source[TUNED_SCHEDULE] = format_schedule(self.tuned_schedule)
        elif self.exits_early:
            source[TUNED_SCHEDULE] = EARLY_EXIT
        return source if self.revision is None else {**source, "revision": self.revision}


def open_checkpoint(source: CheckpointSource) -> Checkpoint:
    """Find and open ``source.model``, downloading it if needed; no tensor is read.

    Raises UnsupportedModelError for a model that can't be compiled, and CheckpointError with all
    tensors that are missing, unexpected, or of the wrong shape.
    """
    if source.load_format == "dummy":
        return _open_dummy(source)
    directory = locate(source)
    model = read_model(directory, source.max_seq_len)
    load_format, files = _weight_files(directory.path, source.load_format)
    reader = MappedReader(_with_tied(_canonical(files, _FORMATS[load_format][1]), model))
    if problems := _tensor_problems(reader, model):
        raise CheckpointError(source.model, *problems)
    tokenizer = read_tokenizer(directory.path)
    if tokenizer is not None:
        model = with_tokenizer_end(model, directory.path, tokenizer)
    warnings: list[str] = []
    if left_out := sorted(name for name in reader.names() if name.startswith(_VALUE_HEAD)):
        warnings.append(f"{', '.join(left_out)} left out: a value head does not change texts")
    if tokenizer is None:
        warnings.append("no tokenizer files: the bundle runs on token ids")
    return Checkpoint(
        model=model,
        reader=reader,
        load_format=load_format,
        directory=directory.path,
        revision=directory.revision,
        tokenizer_json=tokenizer,
        schedule=_read_schedule(directory.path),
        prompt_template=read_template(directory.path),
        exits_early=source.early_exit or _is_early_exit(directory.name),
        chat=None if tokenizer is None else read_chat(directory.path, model, tokenizer),
        warnings=tuple(warnings),
    )


def resolve_schedule(
    text: str | None, checkpoint: Checkpoint, horizon: int | None = None
) -> ExitSchedule:
    """Return the schedule ``text``, else the checkpoint's own, else full depth.

    A preset without a horizon uses ``horizon``, else the checkpoint's. Raises ScheduleError if it
    doesn't fit.
    """
    num_layers, trained = checkpoint.model.num_layers, checkpoint.schedule
    if text is not None:
        if horizon is None and trained is not None:
            horizon = trained.horizon
        return parse_schedule(text, num_layers=num_layers, horizon=horizon)
    if trained is None:
        return ExitSchedule.full(num_layers)
    if trained.num_layers != num_layers:
        raise ScheduleError(
            "the checkpoint's schedule",
            f"is for {trained.num_layers} layers; the model has {num_layers}; "
            "correct it, or choose another with --schedule",
        )
    return trained


def read_model(directory: CheckpointDirectory, max_seq_len: int | None) -> ModelSpec:
    """Return the structure that config.json and generation_config.json describe.

    Raises CheckpointError for a file that can't be read, and like `model_spec`.
    """
    generation = directory.path / "generation_config.json"
    has_generation = generation.is_file() and generation.stat().st_size > 0  # some are empty
    return model_spec(
        _read_config(directory.path),
        directory.name,
        max_seq_len,
        read_object(generation, CheckpointError) if has_generation else None,
    )


def _is_early_exit(name: str) -> bool:
    """Return True for a checkpoint of LayerSkip's, by its hub id or directory."""
    return name.rpartition("/")[2].lower().startswith(_EARLY_EXIT_NAME)


def _open_dummy(source: CheckpointSource) -> Checkpoint:
    """Use random weights in a published architecture or that of a directory's config.json."""
    family = None if Path(source.model).is_dir() else family_config(source.model)
    if family is None:
        directory = locate(source)
        model = read_model(directory, source.max_seq_len)
        schedule = _read_schedule(directory.path)
        template, unused = read_template(directory.path), _text_files(directory.path)
    else:
        model = model_spec(family, hub_id(source.model), source.max_seq_len)
        schedule, template, unused = None, None, ()
    tokenizer = byte_level_tokenizer(model)
    warnings = ["weights are random (load format dummy): texts will make no sense"]
    if unused:
        warnings.append(
            f"{', '.join(unused)} left out: random weights get a byte-level tokenizer, which has "
            "none of their special tokens, and no chat template"
        )
    if tokenizer is None:
        warnings.append(
            f"vocab_size {model.vocab_size} is too small for a byte-level tokenizer: "
            "the bundle runs on token ids"
        )
    return Checkpoint(
        model=model,
        reader=DummyReader(expected_tensors(model), source.seed),
        load_format="dummy",
        tokenizer_json=tokenizer,
        schedule=schedule,
        prompt_template=template,
        warnings=tuple(warnings),
    )


def _text_files(directory: Path) -> tuple[str, ...]:
    """Return the names of tokenizer and chat template, if the checkpoint has them."""
    chat = template_file(directory)
    files = ("tokenizer.json", "tokenizer.model", "vocab.json")
    found = [name for name in files if (directory / name).is_file()][:1]
    return (*found, *(() if chat is None else (chat.name,)))


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    if not path.is_file():
        problem = mistaken(directory) or "has no config.json; not a checkpoint directory"
        raise CheckpointError(str(directory), problem)
    return read_object(path, CheckpointError)


def _read_schedule(directory: Path) -> ExitSchedule | None:
    """Return the exit schedule in ``directory``, plain or in a bundle's form, if there is one.

    Raises CheckpointError, naming the file, for one that is not valid.
    """
    for name in _SCHEDULE_FILES:
        if (path := directory / name).is_file():
            document = read_object(path, CheckpointError)
            wrapped = document.get("schedule")
            try:
                return ExitSchedule.from_document(
                    wrapped if isinstance(wrapped, dict) else document
                )
            except ScheduleError as error:
                problems = (f"{problem}; correct or delete the file" for problem in error.problems)
                raise CheckpointError(str(path), *problems) from error
    return None


def _weight_files(directory: Path, load_format: LoadFormat) -> tuple[LoadFormat, list[Path]]:
    """Return the format found and its files: a single one, or all in an index."""
    formats = tuple(_FORMATS) if load_format == "auto" else (load_format,)
    looked_for = []
    for candidate in formats:
        single = directory / _FORMATS[candidate][0]
        index = single.with_name(f"{single.name}.index.json")
        if single.is_file():
            return candidate, [single]
        if index.is_file():
            return candidate, _shards(index)
        looked_for += [single.name, index.name]
    remedy = "download the weights"
    if load_format != "auto":
        remedy += ", or choose another --load-format"
    raise CheckpointError(
        str(directory),
        mistaken(directory) or f"has none of {', '.join(looked_for)}; {remedy}",
    )


def _shards(index: Path) -> list[Path]:
    weight_map = read_object(index, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(str(index), "has no weight_map; download it again")
    names = sorted({str(name) for name in weight_map.values()})
    outside = [f"names {name!r}, not a file beside it" for name in names if "/" in name]
    missing = [
        f"names {name}, which is missing; download it again"
        for name in names
        if "/" not in name and not (index.parent / name).is_file()
    ]
    if problems := (*outside, *missing):
        raise CheckpointError(str(index), *problems)
    return [index.parent / name for name in names]


def _canonical(
    files: list[Path], map_file: Callable[[Path], dict[str, StoredTensor]]
) -> dict[str, StoredTensor]:
    """Return all files' tensors by canonical name; raise the problems of all files at once."""
    tensors: dict[str, StoredTensor] = {}
    problems = []
    for path in files:
        if is_lfs_pointer(path):
            problems.append(
                f"{path.name}: is a Git LFS pointer, which stands for the weights; run git lfs "
                "pull in its directory, or download it again"
            )
            continue
        try:
            mapped = map_file(path)
        except CheckpointError as error:
            problems += [f"{path.name}: {problem}" for problem in error.problems]
            continue
        for stored_name, tensor in mapped.items():
            name = stored_name.removeprefix("model.")
            if name in tensors:
                problems.append(f"{path.name}: {stored_name} is a duplicate of {name}")
            tensors[name] = tensor
    if problems:
        raise CheckpointError(str(files[0].parent), *problems)
    return tensors


def _with_tied(tensors: dict[str, StoredTensor], model: ModelSpec) -> dict[str, StoredTensor]:
    """Return the tensors; a tied head stored without the embedding gets the embedding's name."""
    twins = {
        name: twin
        for name, twin in decoder_of(model).spare_tensors.items()
        if twin is not None and twin not in tensors
    }
    return {twins.get(name, name): tensor for name, tensor in tensors.items()}


def _tensor_problems(reader: CheckpointReader, model: ModelSpec) -> list[str]:
    expected = expected_tensors(model)
    spare = decoder_of(model).spare_tensors
    names = frozenset(name for name in reader.names() if not name.startswith(_VALUE_HEAD))
    if prefix := _common_prefix(names, expected):
        return [
            f"all names of tensors begin with {prefix!r}, which a wrapper of the model put before "
            "them; save the wrapped model itself, for example model.module.save_pretrained(…)"
        ]
    twins = {name: twin for name, twin in spare.items() if name in names and twin in names}
    shapes = expected | {name: expected[twin] for name, twin in twins.items()}
    missing = [f"{name} is missing" for name in sorted(expected.keys() - names)]
    unexpected = [
        f"{name} is unexpected in this structure"
        for name in sorted(names - expected.keys() - spare.keys())
    ]
    present = shapes.keys() & names
    misshapen = {name for name in present if reader.shape(name) != shapes[name]}
    different = [
        f"{name} differs from {twin} although tie_word_embeddings is true; set it to false in "
        "config.json to use the head's own weights"
        for name, twin in twins.items()
        if not misshapen & {name, twin} and reader.content_id(name) != reader.content_id(twin)
    ]
    wrong_shapes = [
        f"{name} is {list(reader.shape(name))}; expected {list(shapes[name])} by config.json"
        for name in sorted(misshapen)
    ]
    kinds = (missing, unexpected, different, wrong_shapes)
    return [problem for kind in kinds for problem in few(kind)]


def _common_prefix(names: Set[str], expected: Mapping[str, object]) -> str | None:
    """Return the common prefix of the expected tensors among ``names``, if there is one."""
    sample = min(expected)
    found = next((name for name in names if name.endswith(f".{sample}")), None)
    if found is None:
        return None
    prefix = found.removesuffix(sample).removesuffix("model.")
    present = (f"{prefix}{name}" in names or f"{prefix}model.{name}" in names for name in expected)
    return prefix if prefix and all(present) else None
