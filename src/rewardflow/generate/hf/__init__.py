"""The engine on transformers: generates with the module that the trainer updates, or with a copy."""
