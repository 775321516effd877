"""The router: stateless. It speaks HTTP's and gRPC's dialects on one side, token ids with schedulers on the other."""
