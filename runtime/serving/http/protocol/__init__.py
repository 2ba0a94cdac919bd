"""Bodies of requests and answers in the format of the OpenAI completions API."""
