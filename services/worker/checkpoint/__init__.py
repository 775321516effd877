"""The model's files: finds them, checks them in milliseconds, and says what others are told about them.

Imports no torch.
"""
