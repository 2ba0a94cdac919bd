"""Run the verifying process under a quota below the number of processors."""

from skipdec.engines.host import processor

processor.processor_quota = lambda: 1.0

from skipdec.exporter.verification.worker import main  # noqa: E402  (after setting the quota)

main()
