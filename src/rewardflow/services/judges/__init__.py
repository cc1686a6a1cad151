"""LLM judges. A prompt shows one answer, a pair or a whole group; the verdict is parsed strictly."""
