"""What a request asks for besides its prompt: sampling, stop conditions, pooling and truncation, as plain values."""
