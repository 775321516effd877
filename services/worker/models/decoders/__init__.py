"""One module per architecture of decoders: its configuration, its weights and its forward pass."""
