"""A runner of Polygraphy's that binds caches in place, as skipdec's Attention asks for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np
import onnxruntime
from polygraphy.backend.onnxrt import OnnxrtRunner
from polygraphy.util import check_called_by

from ...engines.manifest import EngineSpec, TensorRole
from ...engines.memory import Array

_PAST_OF = {
    TensorRole.PRESENT_KEY: TensorRole.PAST_KEY,
    TensorRole.PRESENT_VALUE: TensorRole.PAST_VALUE,
}


class InPlaceRunner(OnnxrtRunner):  # type: ignore[misc]  # untyped there
    """Runs an engine whose past and present caches are one memory; arrays given are not changed.

    Other outputs, inner tensors among them, are the session's own.
    """

    def __init__(
        self, load: Callable[[], onnxruntime.InferenceSession], name: str, spec: EngineSpec
    ) -> None:
        super().__init__(load, name=name)
        self._past = {
            spec.tensor(present).name: spec.tensor(past).name
            for present, past in _PAST_OF.items()
            if present in spec.roles
        }

    @check_called_by("infer")  # type: ignore[untyped-decorator]
    def infer_impl(self, feed_dict: Mapping[str, Array]) -> OrderedDict[str, Array]:
        """See OnnxrtRunner."""
        arrays = {name: np.array(array) for name, array in feed_dict.items()}
        values = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()
        }
        binding = self.sess.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        names = [node.name for node in self.sess.get_outputs()]
        for name in names:
            if name in self._past:
                binding.bind_ortvalue_output(name, values[self._past[name]])
            else:
                binding.bind_output(name)
        start = perf_counter()
        self.sess.run_with_iobinding(binding)
        self.inference_time = perf_counter() - start
        outputs = dict(zip(names, binding.get_outputs(), strict=True))
        return OrderedDict(
            (name, arrays[self._past[name]] if name in self._past else outputs[name].numpy())
            for name in names
        )
