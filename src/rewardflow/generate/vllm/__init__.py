"""The engine on vLLM: runs in separate processes, with weights that the trainer gives it after every step."""
