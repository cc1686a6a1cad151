"""LLM judges: one answer, a pair or a whole group in a prompt, and a verdict that is parsed strictly."""
