"""Pauses Python's garbage collector where work makes objects in great numbers and keeps them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no reference cycles in the ``with`` block; afterwards as before it.

    Importing torch and tracing make a million objects that mostly stay: looking through them again
    and again for cycles is a quarter of their time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
