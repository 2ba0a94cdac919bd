"""EngineBundle: an open bundle, checked when it is opened and never modified in place."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from ..checking import as_path
from ..documents import read_file
from ..errors import BundleError, UsageError
from ..host.process import NATIVE_WORK
from ..host.processor import available_cores
from ..manifest import EngineSpec, FileRecord, Manifest
from .files import (
    EXPORT_AGAIN,
    HeldDirectory,
    file_problems,
    read_manifest,
    read_schedule,
    require_bundle,
    weights_files,
)
from .place import (
    CARD_NAME,
    MANIFEST_NAME,
    SCHEDULE_NAME,
    WriterLock,
    bundle_place,
)

_ATTEMPTS = 10  # at reading a bundle that keeps being replaced
_MAX_HASHERS = 8  # threads; more are limited by the disk or memory, not by the processor

Verify = Literal["graphs", "full"]
WeightsPlace = Literal["mapped", "copied"]  # from the files, or into this process's memory
T = TypeVar("T")


@dataclass(frozen=True)
class EngineBundle:
    """A directory of engines described by ``manifest.json``.

    The directory is held open: ``locate`` keeps finding the files that were checked even after
    another directory takes the name. ``schedule_document`` is the JSON object of the bundle's
    ExitSchedule, which ``runtime.schedule.bundle`` parses. With ``hashes_weights``, loading the
    engines also hashes their weights (``weights_checked``).
    """

    directory: HeldDirectory = field(repr=False, compare=False)
    manifest: Manifest
    schedule_document: dict[str, Any]
    hashes_weights: bool = field(default=False, compare=False)

    @property
    def path(self) -> Path:
        """Return the directory's absolute path when it was opened, symbolic links resolved."""
        return self.directory.path

    def __repr__(self) -> str:
        model, manifest = self.manifest.model, self.manifest
        return (
            f"EngineBundle({str(self.path)!r}: {model.name}, {model.num_layers} layers, "
            f"{manifest.target}, digest {manifest.digest[:12]}…)"
        )

    @classmethod
    def open(cls, path: str | Path, *, verify: Verify = "graphs") -> Self:
        """Open the bundle at ``path`` after checking that it is complete and undamaged.

        Checks both digests, all sizes, the hashes of graphs and tokenizer and, with
        ``verify="full"``, those of the weights. A swap interrupted during ``export --force`` is
        repaired first. Raises BundleError naming every bad file.
        """
        hash_weights = _hashes_weights(verify)
        return cls._while_replaced(as_path(path), lambda root: cls._read(root, hash_weights))

    @classmethod
    def read_manifest(cls, path: str | Path) -> Manifest:
        """Read only the manifest, even of a damaged bundle. Raises BundleError as ``open``."""
        return cls._while_replaced(as_path(path), read_manifest)

    @classmethod
    def load(cls, path: str | Path, use: Callable[[Self], T], *, verify: Verify = "full") -> T:
        """Open the bundle at ``path`` and return ``use(bundle)``, which loads its engines.

        ``verify="full"`` sets ``hashes_weights``. If the bundle is replaced meanwhile and engines
        go missing, the new one is loaded. Raises what ``open`` and ``use`` raise, and ClosedError
        while the interpreter exits.
        """
        hashes_weights = _hashes_weights(verify)

        def load(root: HeldDirectory) -> T:
            bundle = cls._read(root, hash_weights=False)
            with NATIVE_WORK:
                return use(replace(bundle, hashes_weights=hashes_weights))

        return cls._while_replaced(as_path(path), load)

    @staticmethod
    def _while_replaced(path: Path, use: Callable[[HeldDirectory], T]) -> T:
        """Call ``use`` on the bundle's directory; retry if it failed because of a replacement."""
        for _ in range(_ATTEMPTS):
            try:
                place = bundle_place(path)
                if place.is_interrupted:
                    with WriterLock(place.target):
                        place.repair()
                require_bundle(place.target)
            except (OSError, ValueError) as error:  # no permission, invalid path
                reason = getattr(error, "strerror", None) or error
                raise BundleError(f"{str(path)!r:.200}", f"can't be opened ({reason})") from error
            directory = HeldDirectory(place.target)
            try:
                return use(directory)
            except BundleError:
                if not directory.was_touched():
                    raise
        raise BundleError(
            str(place.target),
            f"was replaced {_ATTEMPTS} times while it was opened; try again later",
        )

    @classmethod
    def _read(cls, directory: HeldDirectory, hash_weights: bool) -> Self:
        bundle = cls(directory, read_manifest(directory), read_schedule(directory))
        if problems := bundle._problems(bundle.manifest.files, hash_weights):
            advice = f"the bundle is damaged; {EXPORT_AGAIN}"
            raise BundleError(str(directory.path), *problems, advice)
        return bundle

    @contextmanager
    def weights_checked(self, engines: Iterable[EngineSpec]) -> Iterator[None]:
        """Hash the weights of ``engines`` during the block, if ``hashes_weights``.

        Raises BundleError naming every bad file when the block ends.
        """
        if not self.hashes_weights:
            yield
            return
        loaded = weights_files(engines)
        weights = [record for record in self.manifest.files if record.path in loaded]
        weights.sort(key=lambda record: -record.size)
        with ThreadPoolExecutor(min(available_cores(), _MAX_HASHERS)) as pool:
            problems = [pool.submit(self._problems, [record], True) for record in weights]
            try:
                yield
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            found = [text for problem in problems for text in problem.result()]
        if found:
            raise BundleError(str(self.path), *found, f"the bundle is damaged; {EXPORT_AGAIN}")

    def check_same(self, other: EngineBundle) -> None:
        """Raise BundleError unless ``other``, opened later at the same path, is this bundle."""
        if other.manifest.digest != self.manifest.digest:
            raise BundleError(
                str(self.path),
                f"was replaced since the work began: it had digest {self.manifest.digest[:12]}…, "
                f"now {other.manifest.digest[:12]}…; start again",
            )

    def file(self, relative: str) -> Path:
        """Return the absolute path of a file that the manifest lists."""
        return self.path / self._listed(relative)

    def locate(self, relative: str) -> Path:
        """Return a path through which this process reads a listed file of the opened directory.

        Valid while this bundle is referenced. If the directory was deleted, the file is missing.
        """
        return self.directory.locate(self._listed(relative))

    def read(self, relative: str, limit: int | None = None) -> bytes:
        """Return the content of a listed file of the opened directory.

        Raises BundleError if it is gone, e.g. after ``export --force`` replaced the bundle, and,
        without reading it, if it has more than ``limit`` bytes.
        """
        remedy = "if the bundle was replaced since it was opened, open it again"
        path, subject = self.locate(relative), str(self.file(relative))
        size = next(record.size for record in self.manifest.files if record.path == relative)
        if limit is not None and size > limit:
            raise BundleError(subject, f"is larger than {limit:,} bytes, the limit")
        return read_file(path, BundleError, subject=subject, remedy=remedy, limit=size)

    def named(self, text: object) -> str:
        """Return an error's text with the bundle's path in place of that of ``locate``."""
        return str(text).replace(f"{self.directory.locate('')}/", f"{self.path}/")

    def _listed(self, relative: str) -> str:
        if all(record.path != relative for record in self.manifest.files):
            raise BundleError(str(self.path), f"lists no file {relative!r} in {MANIFEST_NAME}")
        return relative

    def save(self, directory: str | Path) -> Self:
        """Copy the bundle with schedule, draft and card to ``directory`` atomically; open the copy.

        Raises BundleError if the bundle is damaged or was replaced, and UsageError if ``directory``
        can't take a bundle.
        """
        with bundle_place(as_path(directory)).replaced(force=False) as partial:
            listed = (record.path for record in self.manifest.files)
            for name in (MANIFEST_NAME, SCHEDULE_NAME, CARD_NAME, *listed):
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError, IsADirectoryError):
                    shutil.copy2(self.path / name, partial / name)
            # Raises for what is missing, except the card, and if the bundle was replaced meanwhile.
            self.check_same(type(self).open(self.path, verify="full"))
        return type(self).open(directory)

    def _problems(self, records: Iterable[FileRecord], hash_weights: bool) -> list[str]:
        return file_problems(self.directory, self.manifest, records, hash_weights=hash_weights)


def _hashes_weights(verify: Verify) -> bool:
    if verify not in get_args(Verify):
        raise UsageError("verify", f"is {verify!r}; allowed: 'graphs', 'full'")
    return verify == "full"
