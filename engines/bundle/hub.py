"""Upload of a directory's files to the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ..errors import MissingExtraError, SkipDecError, UsageError


def push_files(
    directory: Path,
    files: Sequence[str],
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    commit_message: str = "Upload with skipdec",
) -> str:
    """Upload ``files`` of ``directory``, relative paths, in one commit, and return its URL.

    A missing repository or branch ``revision`` is created. Files of the repository that are not in
    ``files`` stay. Anything that is None, and the endpoint, is huggingface_hub's default:
    ``HF_TOKEN``, ``hf auth login``, ``HF_ENDPOINT``.

    Raises MissingExtraError without huggingface_hub, UsageError for an invalid id, and SkipDecError
    if the hub or the network fails.
    """
    if find_spec("huggingface_hub") is None:
        raise MissingExtraError(
            "push", "needs huggingface_hub, not installed here; run: pip install huggingface_hub"
        )
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # in its __all__

    api = HfApi(token=token)
    try:
        repo = api.create_repo(repo_id, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repo.repo_id, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo.repo_id,
            folder_path=directory,
            revision=revision,
            commit_message=commit_message,
            allow_patterns=list(files),
        )
    except HFValidationError as error:
        raise UsageError(
            repo_id, f"is not a hub id; allowed: e.g. me/my-model ({error})"
        ) from error
    except (httpx.HTTPError, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SkipDecError(
            repo_id,
            f"could not be pushed ({reason}); log in with: hf auth login, or set "
            "HF_TOKEN, and check that the hub can be reached",
        ) from error
    return str(commit.commit_url)
