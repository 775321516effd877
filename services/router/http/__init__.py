"""The ground of all HTTP APIs: bodies in, JSON and streams out, and the answering of chats."""
