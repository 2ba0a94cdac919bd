"""A model's tensors, as its configuration declares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ....engines.errors import UsageError

DataType = Literal["STRING", "BOOL", "INT32", "UINT32", "UINT64", "FP32"]

_MOST_VALUES = 1 << 17  # of one tensor; a prompt of an OPT has 2,048 tokens at most

_NUMPY: dict[DataType, type[np.generic]] = {
    "STRING": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP32": np.float32,
}


@dataclass(frozen=True)
class TensorType:
    """Type and size of a tensor of one dimension: [1], or [-1] for any number of values."""

    data_type: DataType
    size: Literal[1, -1] = 1

    def array(self, values: Any) -> npt.NDArray[Any]:  # noqa: ANN401  (one value, or several)
        """Return ``values`` as an array that the backend takes; texts as UTF-8."""
        flat = list(values) if self.size == -1 else [values]
        if self.data_type == "STRING":
            flat = [text.encode("utf-8", "replace") for text in flat]
        return np.array(flat, dtype=_NUMPY[self.data_type])

    def value(self, name: str, array: npt.NDArray[Any]) -> Any:  # noqa: ANN401  (see below)
        """A client's values in Python's own types: one, or a list of them.

        A FP32 is read as the shortest decimal number that it stands for, 0.8 as 0.8 and not as
        0.800000011920929: what a client wrote. Raises UsageError for a text that isn't UTF-8, and
        where there is not one value.
        """
        if self.size == 1 and array.size != 1:
            raise UsageError(name, f"has {array.size} values; allowed: one")
        if array.size > _MOST_VALUES:
            raise UsageError(name, f"has {array.size:,} values; allowed: {_MOST_VALUES:,}")
        values = [self._read(name, value) for value in array.reshape(-1).tolist()]
        return values[0] if self.size == 1 else values

    def _read(self, name: str, value: Any) -> Any:  # noqa: ANN401
        if self.data_type == "FP32":
            return float(np.format_float_positional(np.float32(value)))
        if self.data_type != "STRING":
            return value
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(name, f"is no UTF-8 ({error}); send text in UTF-8") from error
