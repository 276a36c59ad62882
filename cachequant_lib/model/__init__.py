"""Models: the architectures, their weights on disk, and the tokenizer."""
