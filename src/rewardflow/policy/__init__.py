"""Provides the model to train and its tokenizer: built in code, or loaded in a format that transformers reads."""
