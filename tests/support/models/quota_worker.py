"""The verifying process, where a quota allows it fewer processors than there are."""

from skipdec.engines.host import processor

processor.processor_quota = lambda: 1.0

from skipdec.exporter.verification.worker import main  # noqa: E402  (with the quota)

main()
