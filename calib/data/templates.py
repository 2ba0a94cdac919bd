"""The prompt template: from the data's options, or else the model's own."""

from __future__ import annotations

from dataclasses import dataclass

from ...engines.manifest import PROMPT_PLACEHOLDER
from .data import DataConfig


@dataclass(frozen=True)
class PromptTemplate:
    """Template of all prompts. ``is_models``: it is the model's, not yet applied when data is read.

    ``note`` tells people which template is used; None if only one was possible.
    """

    text: str = PROMPT_PLACEHOLDER
    is_models: bool = False
    note: str | None = None

    @classmethod
    def choose(cls, data: DataConfig, models: str | None) -> PromptTemplate:
        """Return the template of a preset or option, else ``models``, the model's own template.

        Without either, prompts stay as they are. ``load_examples`` already applied the data's.
        """
        named = data.columns().prompt_template
        if named is None:
            if models is None:
                return cls()
            note = (
                f"prompts are put into {models!r}, as the model was tuned; "
                "--prompt-template '{prompt}' leaves them unchanged"
            )
            return cls(models, is_models=True, note=note)
        if models in (None, named):
            return cls(named)
        return cls(
            named, note=f"prompts are put into {named!r}; the model was tuned with {models!r}"
        )

    def apply(self, prompt: str) -> str:
        """Return a prompt, as it was read from the data, in the form that the model reads."""
        return self.text.replace(PROMPT_PLACEHOLDER, prompt) if self.is_models else prompt


NO_TEMPLATE = PromptTemplate()
