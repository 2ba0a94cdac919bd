"""Render chats in this process, for tests of the rendered texts."""

from __future__ import annotations

from skipdec.runtime.tokens.template_worker import Renderer


class InProcessRenderer(Renderer):
    """Replaces a process of ``template_process``, without its limits and start-up time."""

    has_ended = False
    variables: frozenset[str] | None = None

    def ask(self, kind: bytes, content: bytes) -> tuple[bytes, bytes]:
        return self.answer(kind, content)

    def kill(self) -> None: ...

    def end(self) -> None: ...
