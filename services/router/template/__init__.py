"""Chat templates: what they expect, what they show, and where those that requests bring are rendered."""
