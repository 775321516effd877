"""What becomes of each field that the newest SDKs can send, by API."""
