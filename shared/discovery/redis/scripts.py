"""The Lua scripts that run in Redis.

Each kind of part has three keys. The sorted set `leases` has the end of each address's lease, in milliseconds of Redis'
own clock. The hash `parts` has the description of each address, and the version of the whole under the empty name. The
sorted set `changes` has the last changes, each as the version before, the version after and an address.

The version is `generation.change`; both are random. The generation is new when Redis has lost the data, the change
after each change of the set of descriptions. Two states have equal versions only if they are the same, even if a
failover loses changes, which a counter could not promise. Redis can also evict one of the two keys when it is out of
memory. Every script then finds that the keys do not match, and starts a new generation.

A caller that knows a version from which `changes` leads to the present one gets only the addresses that have changed
since. Scripts of older releases do not write `changes`, and Redis can evict it: the chain of versions is then broken,
and the caller gets the whole list.

Scripts write the version first. If Redis refuses to write (as a replica, out of memory, after a failed snapshot), a
script that finds an expired lease thus fails before it changes anything, and no lease ends.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

# KEYS: leases, parts, changes. ARGV[1]: a random text. `change` is called at most once by a script, and `note` after it
# with all addresses that it has changed. A sorted set serves as a set here, so that ACL users need no more commands.
_BEGIN = """
local leases, parts, changes, random = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local max_changes = 128
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local version = redis.call('HGET', parts, '')
if not version or redis.call('ZCARD', leases) ~= redis.call('HLEN', parts) - 1 then
  version = random .. '.0'
  redis.call('DEL', leases, parts, changes)
  redis.call('HSET', parts, '', version)
end
local before
local function change()
  before, version = version, string.match(version, '^[^.]*') .. '.' .. random
  redis.call('HSET', parts, '', version)
end
local function note(addresses)
  if redis.call('ZCARD', changes) + #addresses > max_changes then redis.call('DEL', changes) end
  if #addresses > max_changes then return end
  for _, address in ipairs(addresses) do
    redis.call('ZADD', changes, 0, before .. ' ' .. version .. ' ' .. address)
  end
end
"""

# ARGV[2]: the version that the caller knows. ARGV[3]: text that a description has to have; empty or left out: any will
# do. Returns the time if the version is the present one. Otherwise, returns the time, all of `parts` that count, and
# the number of all addresses; or the time, the version, each changed address followed by its description (false if it
# is gone or does not count), and the number of all addresses.
_LIST = """
local all_expired = {}
while true do
  local expired = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1000)
  if #expired == 0 then break end
  if #all_expired == 0 then change() end
  redis.call('ZREM', leases, unpack(expired))
  redis.call('HDEL', parts, unpack(expired))
  for _, address in ipairs(expired) do table.insert(all_expired, address) end
end
if #all_expired > 0 then note(all_expired) end
if version == ARGV[2] then return now end

-- Returns the addresses that have changed since a version, nil if that is not known.
local function changed_since(known)
  local steps = {}
  for _, text in ipairs(redis.call('ZRANGEBYSCORE', changes, '-inf', '+inf')) do
    local from, to, address = string.match(text, '^(%S+) (%S+) (.*)$')
    steps[to] = steps[to] or {from = from}
    table.insert(steps[to], address)
  end
  local addresses, at = {}, version
  while at ~= known do
    local step = steps[at]
    if not step then return nil end
    for _, address in ipairs(step) do addresses[address] = true end
    -- Without this, a circle of versions, which only a bug could make, would keep Redis for ever.
    steps[at] = nil
    at = step.from
  end
  return addresses
end

local wanted = ARGV[3] or ''
local function counts(description)
  return wanted == '' or string.find(description, wanted, 1, true) ~= nil
end
local changed = ARGV[2] ~= '' and changed_since(ARGV[2])
local total = redis.call('ZCARD', leases)
local fields = {}
if not changed then
  local all = redis.call('HGETALL', parts)
  if wanted == '' then return {now, all, total} end
  for index = 1, #all, 2 do
    if all[index] == '' or counts(all[index + 1]) then
      table.insert(fields, all[index])
      table.insert(fields, all[index + 1])
    end
  end
  return {now, fields, total}
end
for address in pairs(changed) do
  local description = redis.call('HGET', parts, address)
  table.insert(fields, address)
  table.insert(fields, description and counts(description) and description or false)
end
return {now, version, fields, total}
"""

# ARGV[2..4]: address, description, length of the lease in milliseconds. Returns the description that the address had
# while another part held its lease; nothing otherwise.
_REGISTER = """
local address, description = ARGV[2], ARGV[3]
local other = redis.call('HGET', parts, address)
local is_new = other ~= description
if is_new then change() end
redis.call('ZADD', leases, now + ARGV[4], address)
redis.call('HSET', parts, address, description)
if is_new then
  note({address})
  return other
end
return false
"""

# ARGV[2..3]: address, description. Does nothing if another part has taken over the address.
_LEAVE = """
if redis.call('HGET', parts, ARGV[2]) == ARGV[3] then
  change()
  redis.call('ZREM', leases, ARGV[2])
  redis.call('HDEL', parts, ARGV[2])
  note({ARGV[2]})
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
