"""From a request's text or messages to token ids that fit the model."""
