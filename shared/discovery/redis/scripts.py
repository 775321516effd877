"""The Lua scripts that run in Redis.

Each kind of part has two keys. The sorted set `leases` has the end of each address's lease, in milliseconds of Redis'
own clock. The hash `parts` has the description of each address, and the version of the whole under the empty name.

The version is `generation.change`; both are random. The generation is new when Redis has lost the data, the change
after each change of the set of descriptions. Two states have equal versions only if they are the same, even if a
failover loses changes, which a counter could not promise. Redis can also evict one of the two keys when it is out of
memory. Every script then finds that the keys do not match, and starts a new generation.

Scripts write the version first. If Redis refuses to write (as a replica, out of memory, after a failed snapshot), a
script that finds an expired lease thus fails before it changes anything, and no lease ends.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

# KEYS: leases, parts. ARGV[1]: a random text.
_BEGIN = """
local leases, parts, random = KEYS[1], KEYS[2], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local version = redis.call('HGET', parts, '')
if not version or redis.call('ZCARD', leases) ~= redis.call('HLEN', parts) - 1 then
  version = random .. '.' .. random
  redis.call('DEL', leases, parts)
  redis.call('HSET', parts, '', version)
end
local function change()
  version = string.match(version, '^[^.]*') .. '.' .. random
  redis.call('HSET', parts, '', version)
end
"""

# ARGV[2]: the version that the caller knows. Returns the time; if the version is another one, also all of `parts`.
_LIST = """
local is_changed = false
while true do
  local expired = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1000)
  if #expired == 0 then break end
  if not is_changed then change() end
  is_changed = true
  redis.call('ZREM', leases, unpack(expired))
  redis.call('HDEL', parts, unpack(expired))
end
if version == ARGV[2] then return now end
return {now, redis.call('HGETALL', parts)}
"""

# ARGV[2..4]: address, description, length of the lease in milliseconds. Returns the description that the address had
# while another part held its lease; nothing otherwise.
_REGISTER = """
local address, description = ARGV[2], ARGV[3]
local before = redis.call('HGET', parts, address)
if before ~= description then change() end
redis.call('ZADD', leases, now + ARGV[4], address)
redis.call('HSET', parts, address, description)
if before ~= description then return before end
return false
"""

# ARGV[2..3]: address, description. Does nothing if another part has taken over the address.
_LEAVE = """
if redis.call('HGET', parts, ARGV[2]) == ARGV[3] then
  change()
  redis.call('ZREM', leases, ARGV[2])
  redis.call('HDEL', parts, ARGV[2])
end
"""


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


LIST = Script(_BEGIN + _LIST)
REGISTER = Script(_BEGIN + _REGISTER)
LEAVE = Script(_BEGIN + _LEAVE)
