"""Who may read the weights of a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path


def share_weights(checkpoint: Path) -> None:
    """Give the files of weights in ``checkpoint`` the permissions that its config.json has.

    safetensors 0.8 lets their owner alone read them, whatever the umask allows, and who exports a
    model or serves it is often another user than who tuned it.
    """
    for path in checkpoint.glob("*.safetensors"):
        shutil.copymode(checkpoint / "config.json", path)
