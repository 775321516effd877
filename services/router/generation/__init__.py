"""From a request in token ids to its answers as text, for every API."""
