"""Bindings of engines: tensors are found by role, so that every engine gets what its spec names."""

from __future__ import annotations

from collections.abc import Mapping

from ...engines.backends.session import Binding, EngineSession
from ...engines.manifest import TensorRole
from ...engines.memory import Tensor


def bind(session: EngineSession, tensors: Mapping[TensorRole, Tensor]) -> Binding:
    """Bind those of ``tensors`` whose roles the engine has."""
    wanted = session.spec.roles
    return session.bind({role: tensor for role, tensor in tensors.items() if role in wanted})


def run_once(session: EngineSession, tensors: Mapping[TensorRole, Tensor]) -> None:
    """Bind those of ``tensors`` whose roles the engine has, run it once and release them."""
    binding = bind(session, tensors)
    binding.run()
    binding.release()


def cache_tensors(key: Tensor, value: Tensor) -> dict[TensorRole, Tensor]:
    """Return one buffer as past and present, so that the engine appends in place."""
    return {
        TensorRole.PAST_KEY: key,
        TensorRole.PRESENT_KEY: key,
        TensorRole.PAST_VALUE: value,
        TensorRole.PRESENT_VALUE: value,
    }
