"""Holds whatever the tests' HTTP clients are answered against what is promised: our own OpenAPI document, OpenAI's
published one, and the types of OpenAI's SDK."""
