"""What the prompts of the data stand in: a template of the data's options, or the model's own."""

from __future__ import annotations

from dataclasses import dataclass

from ...engines.manifest import PROMPT_PLACEHOLDER
from .data import DataConfig


@dataclass(frozen=True)
class PromptTemplate:
    """The template of all prompts. ``is_models``: it is not in them as they were read.

    ``note``: which one it is, for people; None where only one could be meant.
    """

    text: str = PROMPT_PLACEHOLDER
    is_models: bool = False
    note: str | None = None

    @classmethod
    def choose(cls, data: DataConfig, models: str | None) -> PromptTemplate:
        """The data's, where a preset or an option names one; else ``models``, the model's own.

        Without either a prompt stands alone. ``load_examples`` has put prompts into the data's.
        """
        named = data.columns().prompt_template
        if named is None:
            if models is None:
                return cls()
            note = (
                f"prompts are put into {models!r}, as the model was tuned; "
                "--prompt-template '{prompt}' leaves them alone"
            )
            return cls(models, is_models=True, note=note)
        if models in (None, named):
            return cls(named)
        return cls(
            named, note=f"prompts are put into {named!r}; the model was tuned with {models!r}"
        )

    def apply(self, prompt: str) -> str:
        """A prompt of the data, as it was read, in the way that the model reads it."""
        return self.text.replace(PROMPT_PLACEHOLDER, prompt) if self.is_models else prompt


NO_TEMPLATE = PromptTemplate()
