"""Export of a checkpoint to a verified bundle with one engine per decoder layer."""
