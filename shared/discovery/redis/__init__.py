"""Parts that register in Redis under leases, and lists of them. Needs the package redis (`quire[redis]`)."""

from shared.discovery.redis.connection import RedisConnection, RedisUnavailableError
from shared.discovery.redis.redis_source import RedisSource, registered_parts
from shared.discovery.redis.registration import RedisRegistration

__all__ = ["RedisConnection", "RedisRegistration", "RedisSource", "RedisUnavailableError", "registered_parts"]
