-- Refuses requests that routers cannot handle (ADR 22): headers that are too large or too many, headers that gRPC
-- servers cannot parse, and paths that are not UTF-8. deploy/envoy/render.py sets `max_header_bytes`.

-- The limits leave room for headers that the gateway adds (x-request-id, x-forwarded-for and others), and for the
-- request's method, path, scheme and authority.
local max_headers = 100
local own_headers = 10
local own_header_bytes = 512

-- Allowed last characters of base64, by the number of characters in the last group: the unused bits must be 0.
local last_characters = {[0] = '[A-Za-z0-9+/]', [2] = '[AQgw]', [3] = '[AEIMQUYcgkosw048]'}

local function is_base64(value)
  if value == '' then return true end
  local digits = value:match('^([A-Za-z0-9+/]+)=?=?$')
  if digits == nil or (#digits < #value and #value % 4 ~= 0) then return false end
  local last = last_characters[#digits % 4]
  return last ~= nil and digits:sub(-1):find(last) ~= nil
end

-- Bounds of the second byte of a UTF-8 character, by its first byte (Unicode 15, table 3-7). All other continuation
-- bytes are 128 to 191.
local second_bytes = {[0xE0] = {0xA0, 0xBF}, [0xED] = {0x80, 0x9F}, [0xF0] = {0x90, 0xBF}, [0xF4] = {0x80, 0x8F}}
local any_continuation = {0x80, 0xBF}

local function is_utf8(text)
  local position, length = 1, #text
  while position <= length do
    local first = text:byte(position)
    local following = first < 0x80 and 0 or first < 0xC2 and -1 or first < 0xE0 and 1 or first < 0xF0 and 2 or first < 0xF5 and 3 or -1
    if following < 0 then return false end
    local bounds = second_bytes[first] or any_continuation
    for offset = 1, following do
      local byte = text:byte(position + offset)
      if byte == nil or byte < bounds[1] or byte > bounds[2] then return false end
      bounds = any_continuation
    end
    position = position + 1 + following
  end
  return true
end

local function unescaped(path)
  return (path:gsub('%%(%x%x)', function(digits) return string.char(tonumber(digits, 16)) end))
end

-- Patterns of the headers that gRPC servers parse themselves. A value that they cannot parse breaks the header for
-- every later call on the connection to the router, and so does a bad `…-bin` value.
local grpc_forms = {
  ['grpc-timeout'] = '^%d%d?%d?%d?%d?%d?%d?%d?[HMSmun]$',
  ['grpc-previous-rpc-attempts'] = '^%d%d?%d?%d?$',
  ['grpc-accept-encoding'] = '',
  ['grpc-trace-bin'] = '',
  ['grpc-tags-bin'] = '',
}
local grpc_encodings = {identity = true, deflate = true, gzip = true}
local INVALID_ARGUMENT, UNIMPLEMENTED = 3, 12

local function is_reserved(name)
  return name:sub(1, 5) == 'grpc-' or name == 'lb-cost-bin' or name == 'grpclb_client_stats'
end

-- Returns the HTTP status, the gRPC status and the message of a refusal; nothing for a valid request. Removes headers
-- that routers must not see: those that only gRPC servers send, and, unless the client uses gRPC, those that only gRPC
-- clients send.
local function fault_of(headers, is_grpc)
  local count, size, unread = 0, 0, {}
  local wrong, wrong_grpc, encoding
  for name, value in pairs(headers) do
    count, size = count + 1, size + #name + #value
    if name:sub(-4) == '-bin' and not is_base64(value) then wrong = name end
    if is_reserved(name) then
      -- HTTP clients may set a deadline, too.
      local form = (is_grpc or name == 'grpc-timeout') and grpc_forms[name]
      if is_grpc and name == 'grpc-encoding' then
        if not grpc_encodings[value] then encoding = value end
      elseif not form then
        unread[#unread + 1] = name
      elseif not value:find(form) then
        wrong_grpc = name
      end
    end
  end
  for _, name in ipairs(unread) do headers:remove(name) end
  -- gRPC servers answer RESOURCE_EXHAUSTED to large metadata, but clients retry that status, so use INVALID_ARGUMENT.
  if size > max_header_bytes + own_header_bytes then
    return 431, INVALID_ARGUMENT, 'The request headers are too large: at most ' .. max_header_bytes / 1024 .. ' KiB are allowed.'
  end
  if count > max_headers + own_headers then
    return 431, INVALID_ARGUMENT, 'There are too many request headers: at most ' .. max_headers .. ' are allowed.'
  end
  -- The name needs no JSON escaping: Envoy has checked that it is a token of RFC 9110.
  if wrong ~= nil then
    local what = "The value of the header '" .. wrong:sub(1, 128) .. "' must be base64, because its name ends in '-bin'."
    return 400, INVALID_ARGUMENT, what
  end
  if wrong_grpc ~= nil then
    return 400, INVALID_ARGUMENT, "The value of the header '" .. wrong_grpc .. "' is not valid in gRPC."
  end
  if encoding ~= nil then
    return 400, UNIMPLEMENTED, "Messages must be compressed with gzip or deflate, or not at all: see 'grpc-encoding'."
  end
  local path = headers:get(':path') or ''
  if (path:find('%%[89a-fA-F]') or path:find('[\128-\255]')) and not is_utf8(unescaped(path)) then
    return 400, INVALID_ARGUMENT, 'The path is not valid UTF-8 once its %-escapes are decoded.'
  end
end

function envoy_on_request(handle)
  if strip_root_path then strip_root_path(handle) end
  local headers = handle:headers()
  if headers:get(':method') == 'HEAD' then
    handle:streamInfo():dynamicMetadata():set('envoy.filters.http.lua', 'is_head', true)
  end
  local is_grpc = (headers:get('content-type') or ''):sub(1, 16) == 'application/grpc'
  local status, grpc_status, message = fault_of(headers, is_grpc)
  if status == nil then return end
  local api = handle:metadata():get('api') or 'openai'
  local answer = {[':status'] = tostring(status), ['quire-error'] = shapes[api](status, '"' .. message .. '"')}
  if is_grpc then
    answer['grpc-status'] = tostring(grpc_status)
    answer['quire-refusal'] = message:gsub('%%', '%%%%25')
  end
  handle:respond(answer, message)
end

local refusal_codes = {['3'] = 'invalid_argument', ['12'] = 'unimplemented'}

-- Restores the message for a gRPC client: Envoy has replaced it by a body for HTTP clients (local_reply_config). Adds the
-- details.
function finish_refusal(headers)
  local message = headers:get('quire-refusal')
  if message == nil then return end
  headers:replace('grpc-message', message)
  headers:remove('quire-refusal')
  local status = headers:get('grpc-status')
  local code = (headers:get('quire-error') or ''):match('"code": ?"([a-z_]+)"') or refusal_codes[status]
  headers:add('grpc-status-details-bin', base64(status_details(status, percent_decoded(message), code)))
end
