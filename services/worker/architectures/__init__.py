"""What config.json says of a model: its family, its sizes, and the names and shapes of its weights.

Imports no torch.
"""
