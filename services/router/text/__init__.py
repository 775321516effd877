"""Text to token ids and back: the tokenizer, the detokenizer and stop strings."""
