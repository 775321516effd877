"""`quire run-batch`'s work: a file of requests in OpenAI's batch format becomes a file of answers."""
