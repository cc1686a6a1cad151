"""vLLM as a rollout engine: in processes of its own, with weights that the trainer gives it after every step."""
