"""Hugging Face's model gives equal logits with weights in memory or read on use."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fixture_types import Checkpoints

from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource
from skipdec.exporter.verification.hugging_face import hugging_face_logits, hugging_face_model


@pytest.mark.parametrize("structure", ["pre_norm", "post_norm", "llama"])
def test_weights_read_on_use_give_the_logits_of_the_whole_model(
    structure: str, checkpoint: Checkpoints
) -> None:
    opened = open_checkpoint(CheckpointSource(model=str(checkpoint(structure))))
    row = [3, 1, 4, 1, 5]
    whole = hugging_face_model(opened.model, "float16", opened.reader)
    expected = whole(torch.tensor([row])).logits[0].detach().numpy()
    logits = hugging_face_logits([row, row[:2]], opened.model, "float16", opened.reader)
    np.testing.assert_allclose(logits[0], expected, atol=1e-5)
    np.testing.assert_allclose(logits[1], expected[:2], atol=1e-5)


def test_logits_are_computed_in_the_requested_type(checkpoint: Checkpoints) -> None:
    opened = open_checkpoint(CheckpointSource(model=str(checkpoint("pre_norm"))))
    row = [3, 1, 4, 1, 5]
    whole = hugging_face_model(opened.model, "float16", opened.reader).half()
    expected = whole(torch.tensor([row])).logits[0].detach().float().numpy()
    arguments = ([row], opened.model, "float16", opened.reader)
    (logits,) = hugging_face_logits(*arguments, computes_in="float16")
    np.testing.assert_array_equal(logits, expected)
    assert (logits != hugging_face_logits(*arguments)[0]).any()
