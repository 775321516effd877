"""Makes the bundled chat models: the text, the tokenizer, the training, the measurements."""
