"""One module per architecture of encoders: its configuration, its weights and its forward pass."""
