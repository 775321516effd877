"""Runs a file of requests in OpenAI's batch format and writes a file of answers, for `quire run-batch`."""
