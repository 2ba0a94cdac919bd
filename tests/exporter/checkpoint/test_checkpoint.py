from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from skipdec.engines.errors import CheckpointError, UnsupportedModelError
from skipdec.engines.manifest import EARLY_EXIT, TUNED_SCHEDULE
from skipdec.exporter.architecture import opt
from skipdec.exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from skipdec.exporter.checkpoint.draft_layer import read_draft_layer
from skipdec.exporter.checkpoint.reader import CheckpointReader
from skipdec.exporter.config import CheckpointSource
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule

Tensors = dict[str, torch.Tensor]
TUNED = "linear:max=4,min=2,warmup=1,horizon=8"
SCHEDULE = parse_schedule(TUNED, num_layers=6).to_document()


def open_directory(directory: Path, **options: object) -> Checkpoint:
    return open_checkpoint(CheckpointSource(model=str(directory), **options))


def rewrite(directory: Path, file_format: str, tensors: Tensors) -> None:
    """Replace the contents of ``directory`` by ``tensors``."""
    weights = directory / "model.safetensors"
    weights.unlink(missing_ok=True)
    kind, _, sharded = file_format.partition(" ")
    names = sorted(tensors)
    shards = {"only": names} if not sharded else {"1": names[::2], "2": names[1::2]}
    suffix = "safetensors" if kind == "safetensors" else "bin"
    stem = "model" if kind == "safetensors" else "pytorch_model"
    weight_map = {}
    for label, members in shards.items():
        file = f"{stem}-0000{label}-of-00002.{suffix}" if sharded else f"{stem}.{suffix}"
        part = {name: tensors[name].contiguous() for name in members}
        (save_file if kind == "safetensors" else torch.save)(part, directory / file)
        weight_map |= dict.fromkeys(members, file)
    if sharded:
        index = directory / f"{stem}.{suffix}.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def stored(directory: Path) -> Tensors:
    return load_file(directory / "model.safetensors")


def contents(reader: CheckpointReader) -> dict[str, str]:
    return {name: reader.content_id(name) for name in sorted(reader.names())}


FORMATS = ("safetensors", "safetensors sharded", "bin", "bin sharded")


@pytest.mark.parametrize("prefix", ["model.", ""])
@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_gives_identical_arrays(
    directory: Path, file_format: str, prefix: str
) -> None:
    original = open_directory(directory)
    tensors = stored(directory)
    rewrite(
        directory, file_format, {prefix + k.removeprefix("model."): v for k, v in tensors.items()}
    )
    reopened = open_directory(directory)
    assert reopened.load_format == file_format.split()[0]
    assert contents(reopened.reader) == contents(original.reader)
    for name in reopened.reader.names():
        array = reopened.reader.read(name)
        assert np.array_equal(array, tensors[f"model.{name}"].numpy())
        assert np.array_equal(reopened.reader.read_rows(name, 1, 3), array[1:3])


@pytest.mark.parametrize("file_format", FORMATS)
def test_bfloat16_is_widened_exactly(directory: Path, file_format: str) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in stored(directory).items()}
    rewrite(directory, file_format, tensors)
    reader = open_directory(directory).reader
    for name in reader.names():
        assert reader.read(name).dtype == np.float32
        assert np.array_equal(reader.read(name), tensors[f"model.{name}"].float().numpy())


@pytest.mark.parametrize("file_format", ["safetensors", "bin"])
def test_float16_stays_float16(directory: Path, file_format: str) -> None:
    rewrite(directory, file_format, {k: v.half() for k, v in stored(directory).items()})
    reader = open_directory(directory).reader
    assert {reader.read(name).dtype for name in reader.names()} == {np.dtype(np.float16)}


def test_missing_unexpected_and_misshapen_tensors_are_listed_together(directory: Path) -> None:
    tensors = stored(directory)
    del tensors["model.decoder.layers.3.fc1.bias"]
    tensors["model.decoder.layers.9.fc1.bias"] = torch.zeros(3)
    tensors["model.decoder.embed_positions.weight"] = torch.zeros(64, 32)
    rewrite(directory, "safetensors", tensors)
    with pytest.raises(CheckpointError) as caught:
        open_directory(directory)
    assert caught.value.problems == (
        "decoder.layers.3.fc1.bias is missing",
        "decoder.layers.9.fc1.bias is unexpected in this structure",
        "decoder.embed_positions.weight is [64, 32]; expected [66, 32] by config.json",
    )


def test_tied_head_may_be_stored_but_not_differ(directory: Path) -> None:
    tensors = stored(directory)
    tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
    rewrite(directory, "safetensors", tensors)
    assert open_directory(directory).model.tie_word_embeddings
    tensors["lm_head.weight"][0, 0] += 1
    rewrite(directory, "safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"differs from decoder\.embed_tokens\.weight"):
        open_directory(directory)


def test_a_tied_head_may_be_stored_instead_of_the_embedding(directory: Path) -> None:
    original, tensors = open_directory(directory), stored(directory)
    tensors["lm_head.weight"] = tensors.pop("model.decoder.embed_tokens.weight")
    rewrite(directory, "safetensors", tensors)
    assert open_directory(directory).content == original.content


@pytest.mark.parametrize("shape", [(), (7,), (131, 0), (0, 32), (131, 33)])
@pytest.mark.parametrize("file_format", ["safetensors", "bin"])
def test_a_tied_head_of_another_shape_is_refused(
    directory: Path, file_format: str, shape: tuple[int, ...]
) -> None:
    tensors = stored(directory)
    for name in ("lm_head.weight", "model.decoder.embed_tokens.weight"):
        tensors[name] = torch.zeros(shape)
        rewrite(directory, file_format, tensors)
        with pytest.raises(CheckpointError, match=r"lm_head\.weight is .*; expected \[.*, 32\]"):
            open_directory(directory)


@pytest.mark.parametrize("file_format", ["safetensors", "bin"])
def test_other_dtypes_are_refused(directory: Path, file_format: str) -> None:
    rewrite(directory, file_format, {k: v.double() for k, v in stored(directory).items()})
    with pytest.raises(CheckpointError, match=r"decoder\.final_layer_norm\.bias is .*64; allowed"):
        open_directory(directory)


@pytest.mark.parametrize("file_format", FORMATS)
def test_truncated_file_is_refused(directory: Path, file_format: str) -> None:
    rewrite(directory, file_format, stored(directory))
    suffix = file_format.split()[0]
    victim = max(directory.glob(f"*.{suffix}"))
    victim.write_bytes(victim.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=victim.name):
        open_directory(directory)


def test_all_missing_shards_are_named(directory: Path) -> None:
    rewrite(directory, "safetensors sharded", stored(directory))
    for shard in directory.glob("*.safetensors"):
        shard.unlink()
    with pytest.raises(CheckpointError) as caught:
        open_directory(directory)
    assert len(caught.value.problems) == 2


def test_shard_outside_the_directory_is_refused(directory: Path) -> None:
    rewrite(directory, "bin sharded", stored(directory))
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../other.bin"}}))
    with pytest.raises(CheckpointError, match="not a file beside it"):
        open_directory(directory)


def test_pickled_code_is_not_run(directory: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (exec, ("raise SystemExit",))

    (directory / "model.safetensors").unlink()
    torch.save({"a": Evil()}, directory / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="never run"):
        open_directory(directory)


@pytest.mark.parametrize(
    ("break_it", "error", "text"),
    [
        (lambda path: (path / "config.json").unlink(), CheckpointError, "no config.json"),
        (
            lambda path: (path / "config.json").rename(path / "manifest.json"),
            CheckpointError,
            "is a bundle, not a checkpoint; pass the directory that it was exported from",
        ),
        (lambda path: (path / "config.json").write_text("{"), CheckpointError, "not JSON"),
        (lambda path: (path / "config.json").write_text("{}"), UnsupportedModelError, "model_type"),
        (lambda path: (path / "model.safetensors").unlink(), CheckpointError, "has none of"),
        (lambda path: (path / "model.safetensors").write_bytes(b"x"), CheckpointError, "1 bytes"),
        (lambda path: (path / "schedule.json").write_text("[]"), CheckpointError, "JSON list"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), CheckpointError, "tokenizer"),
        (
            lambda path: (path / "prompt_template.json").write_text('{"prompt_template": "none"}'),
            CheckpointError,
            "with {prompt} once",
        ),
    ],
)
def test_broken_directories_are_refused_with_the_file_named(
    directory: Path, break_it: Callable[[Path], object], error: type[Exception], text: str
) -> None:
    break_it(directory)
    with pytest.raises(error, match=text):
        open_directory(directory)


def test_another_load_format_is_advised_only_where_one_was_chosen(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    for load_format in ("auto", "safetensors"):
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(CheckpointSource(model=str(directory), load_format=load_format))
        assert ("--load-format" in str(caught.value)) == (load_format != "auto")


@pytest.mark.parametrize("name", ["schedule.json", "training_schedule.json"])
@pytest.mark.parametrize("document", [SCHEDULE, {"schedule": SCHEDULE, "digest": "0" * 64}])
def test_schedule_is_picked_up_plain_or_wrapped(
    directory: Path, name: str, document: dict[str, object]
) -> None:
    (directory / name).write_text(json.dumps(document))
    assert open_directory(directory).schedule == ExitSchedule.from_document(SCHEDULE)


def test_a_broken_schedule_is_refused_by_file_name(directory: Path) -> None:
    (directory / "schedule.json").write_text('{"horizon": 8}')
    problem = r"schedule\.json \| .*key 'num_layers' is missing; correct or delete the file"
    with pytest.raises(CheckpointError, match=f"(?s){problem}"):
        open_directory(directory)


def test_the_manifest_records_the_schedule_of_tuned_weights(directory: Path) -> None:
    assert TUNED_SCHEDULE not in open_directory(directory).source()
    (directory / "schedule.json").write_text(json.dumps(SCHEDULE))
    assert open_directory(directory).source()[TUNED_SCHEDULE] == TUNED
    of_another_depth = parse_schedule("2x", num_layers=12, horizon=8)
    for untuned in (ExitSchedule.full(6), of_another_depth):
        (directory / "schedule.json").write_text(json.dumps(untuned.to_document()))
        assert TUNED_SCHEDULE not in open_directory(directory).source()


def test_layerskip_is_recognised_by_its_name_or_an_option(directory: Path) -> None:
    model = str(directory)
    assert open_checkpoint(CheckpointSource(model=model, early_exit=True)).exits_early
    renamed = directory.rename(directory.with_name("layerskip-llama3.2-1B"))
    assert open_directory(renamed).source()[TUNED_SCHEDULE] == EARLY_EXIT


def test_missing_tokenizer_files_are_a_warning(directory: Path) -> None:
    opened = open_directory(directory)
    assert opened.tokenizer_json is None
    assert "token ids" in opened.warnings[0]


def test_vocab_and_merges_are_converted_and_keep_opts_leading_token(directory: Path) -> None:
    from tokenizers import Tokenizer

    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    vocab = [*specials, *map(chr, range(33, 127)), "Ġ", "ab"]
    (directory / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocab)}))
    (directory / "merges.txt").write_text("#version: 0.2\na b\n")
    options = {
        "bos_token": "</s>",
        "eos_token": "</s>",
        "unk_token": "</s>",
        "pad_token": "<pad>",
        "add_bos_token": True,
        "tokenizer_class": "GPT2Tokenizer",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(options))
    content = open_directory(directory).tokenizer_json
    assert content is not None
    tokenizer = Tokenizer.from_str(content.decode())
    assert tokenizer.encode("ab a").tokens == ["</s>", "ab", "Ġ", "a"]


@pytest.mark.parametrize("model", ["./nowhere", "a/b/c", "~nobody9/x", "facebook/opt-125m"])
def test_an_unknown_or_unreachable_model_is_refused_with_advice(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    source = CheckpointSource(model=model, local_files_only=True)
    with pytest.raises(CheckpointError, match="directory"):
        open_checkpoint(source)


def test_dummy_takes_the_architecture_from_a_directory_or_the_family(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    assert open_directory(directory, load_format="dummy").model.hidden_size == 32
    opened = open_checkpoint(CheckpointSource(model="opt-66b", load_format="dummy"))
    assert (opened.model.name, opened.model.num_layers) == ("facebook/opt-66b", 64)
    assert opened.tokenizer_json is not None


def test_random_weights_warn_about_ignored_files(directory: Path) -> None:
    (directory / "prompt_template.json").write_text('{"prompt_template": "Q: {prompt}"}')
    (directory / "tokenizer.json").write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    opened = open_directory(directory, load_format="dummy")
    assert opened.prompt_template == "Q: {prompt}"
    assert any(
        text.startswith("tokenizer.json, chat_template.jinja left out") for text in opened.warnings
    )


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"),
        *("tokenizer.model", "chat_template.jinja", "schedule.json", "prompt_template.json"),
        *("added_tokens.json", "merges.txt", "pytorch_model-00001-of-00002.bin"),
    ],
)
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "is a pipe; expected a regular file; replace it"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device; expected a regular file"),
        (lambda path: path.symlink_to("nothing"), "can't be read (No such file or directory)"),
        (Path.mkdir, "is a directory; expected a regular file"),
    ],
)
def test_a_file_that_is_not_regular_is_refused_by_name(
    directory: Path, name: str, make: Callable[[Path], object], problem: str, load_format: str
) -> None:
    (directory / name).unlink(missing_ok=True)
    make(directory / name)
    with pytest.raises(CheckpointError) as caught:
        open_directory(directory, load_format=load_format)
    assert f"{name} {problem}" in str(caught.value)


def test_a_pipe_in_place_of_a_draft_layer_is_refused(directory: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "draft_layer.json")
    with pytest.raises(CheckpointError, match=r"draft_layer.json is a pipe"):
        read_draft_layer(tmp_path, open_directory(directory))


def test_an_opt_of_many_positions_reads_8192_tokens_by_default() -> None:
    config = {"max_position_embeddings": 16384}
    assert opt.read_structure(config, "long", None).max_seq_len == 8192
    assert opt.read_structure(config, "long", 16384).max_seq_len == 16384
    with pytest.raises(UnsupportedModelError, match="max_seq_len is 16385; allowed: 1 to 16384"):
        opt.read_structure(config, "long", 16385)


def test_old_spellings_in_a_configuration_are_accepted(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    config |= {"pad_token_id": -1, "architectures": ["optForCausalLM"]}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text("")
    model = open_directory(directory).model
    assert (model.pad_token_id, model.eos_token_id) == (None, 2)


def test_a_value_head_is_left_out_with_a_warning(directory: Path) -> None:
    tensors = stored(directory)
    rewrite(directory, "safetensors", tensors | {"v_head.summary.weight": torch.zeros(1, 32)})
    opened = open_directory(directory)
    assert "v_head.summary.weight left out: a value head" in opened.warnings[0]


@pytest.mark.parametrize("prefix", ["module.", "base_model.model."])
def test_tensor_names_with_a_common_prefix_are_one_problem(directory: Path, prefix: str) -> None:
    tensors = {f"{prefix}{name}": tensor for name, tensor in stored(directory).items()}
    rewrite(directory, "safetensors", tensors)
    with pytest.raises(CheckpointError) as caught:
        open_directory(directory)
    (problem,) = caught.value.problems
    assert problem.startswith(f"all names of tensors begin with '{prefix}', which a wrapper of the")
