"""Bundles on disk: reading, writing, copying and replacing them."""

from .bundle import EngineBundle, Verify, WeightsPlace
from .files import file_record, place_problems, replace_file, require_place, write_schedule

__all__ = [
    "EngineBundle",
    "Verify",
    "WeightsPlace",
    "file_record",
    "place_problems",
    "replace_file",
    "require_place",
    "write_schedule",
]
