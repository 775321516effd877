"""Chaos: a real fleet under load while parts and links fail, and a checker of everything that its clients received."""

# gRPC's handlers of fork can abort a child between fork and exec, while this process has channels open. A program that
# starts parts sets these variables before it imports grpc. The parts do not inherit them.
GRPC_VARIABLES = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "ERROR"}
