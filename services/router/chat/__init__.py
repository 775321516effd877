"""Conversations: what every chat API is translated to, and the one way in which they are answered."""
