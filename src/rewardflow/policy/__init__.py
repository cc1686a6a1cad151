"""The model that learns, with its tokenizer: built in code or loaded from what transformers can read."""
