"""From a checkpoint to a verified bundle of one engine per decoder layer."""
