"""The router, a stateless service: it translates between the clients' HTTP and gRPC APIs and the schedulers' token ids.
"""
