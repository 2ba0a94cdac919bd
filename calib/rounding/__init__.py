"""Round weights to an int4 grid by their effect on real texts (GPTQ)."""
