"""int4 weights rounded against the data that they will see (GPTQ)."""
