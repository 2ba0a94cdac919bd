"""Run the ``skipdec`` command: ``python -m skipdec export …``."""

from .cli import main

main()
