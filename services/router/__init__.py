"""The router, a stateless service that translates the clients' HTTP and gRPC APIs to token ids for the schedulers."""
