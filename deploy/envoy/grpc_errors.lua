-- Gives the gateway's errors to gRPC clients the format of the router's: the message as text, and OpenAI's error object
-- in `quire-error`. Envoy's own answers have that object as their grpc-message (local_reply_config). Errors that the
-- router's gRPC library sends itself, as for an unknown method, have no such object.

-- gRPC statuses by the code in the body, for errors to which Envoy assigns only an HTTP code. gRPC uses
-- RESOURCE_EXHAUSTED for a message over a limit, and DEADLINE_EXCEEDED for a request that did not arrive in time.
local grpc_statuses = {request_too_large = '8', request_timeout = '4'}
-- The `code` for OpenAI's error object by gRPC status, for errors that have none.
local grpc_codes = {
  ['4'] = 'timeout', ['8'] = 'rate_limit_exceeded', ['12'] = 'unknown_method', ['13'] = 'internal_error',
  ['14'] = 'unavailable',
}
local escapes = {b = '\b', f = '\f', n = '\n', r = '\r', t = '\t'}

local function percent_decoded(text)
  return (text:gsub('%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end))
end

local function percent_encoded(text)
  return (text:gsub('[^\32-\36\38-\126]', function(byte) return string.format('%%%02X', byte:byte()) end))
end

-- Returns the text of a JSON string. \u escapes stay as they are.
local function unquoted(json)
  return (json:sub(2, -2):gsub('\\(.)', function(letter) return escapes[letter] or (letter == 'u' and '\\u' or letter) end))
end

-- Returns the text as a JSON string in ASCII. Other characters become question marks.
local function quoted(text)
  return '"' .. text:gsub('[\\"]', '\\%0'):gsub('[^\32-\126]', '?') .. '"'
end

-- Builds the google.rpc.Status of `grpc-status-details-bin`, like services/router/rpc/status_details.py: ErrorInfo, and
-- RetryInfo if a retry can succeed.

local function varint(number)
  if number < 128 then return string.char(number) end
  return string.char(number % 128 + 128) .. varint(math.floor(number / 128))
end

-- Encodes a protobuf field of bytes, of a message or of text.
local function bytes_field(number, bytes)
  return string.char(number * 8 + 2) .. varint(#bytes) .. bytes
end

local function int_field(number, value)
  return string.char(number * 8) .. varint(value)
end

local function any(name, message)
  return bytes_field(1, 'type.googleapis.com/google.rpc.' .. name) .. bytes_field(2, message)
end

local function status_details(status, message, code, retry_seconds)
  -- A protobuf string must be UTF-8: neither the cut at 512 bytes nor a byte of the client's path may break it.
  local text = message:gsub('[^\32-\126]', '?'):sub(1, 512)
  local details = int_field(1, tonumber(status)) .. bytes_field(2, text)
    .. bytes_field(3, any('ErrorInfo', bytes_field(1, code:upper()) .. bytes_field(2, 'quire')))
  if retry_seconds == nil then return details end
  return details .. bytes_field(3, any('RetryInfo', bytes_field(1, int_field(1, retry_seconds))))
end

local base64_letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'

-- Returns base64 without padding, as gRPC's libraries send it.
local function base64(bytes)
  local letters = {}
  for start = 1, #bytes, 3 do
    local first, second, third = bytes:byte(start, start + 2)
    local group = first * 65536 + (second or 0) * 256 + (third or 0)
    for place = 0, third and 3 or second and 2 or 1 do
      local index = math.floor(group / 64 ^ (3 - place)) % 64 + 1
      letters[#letters + 1] = base64_letters:sub(index, index)
    end
  end
  return table.concat(letters)
end

-- The router's gRPC library refuses a request that is too large once it is decompressed, and an answer that is too large
-- to send. Both have the status of a server that is too busy, but a retry cannot succeed. Returns 'request' or 'answer',
-- or nil for any other message.
function size_error(message)
  if not message:find('message larger than max', 1, true) then return nil end
  return message:find('Sent message larger than max', 1, true) and 'answer' or 'request'
end

-- Formats the headers of an error answer. `message_of`: finds the message in a body.
function shape_grpc_error(headers, message_of)
  local status = headers:get('grpc-status')
  if status == nil or status == '0' or headers:get('quire-error') ~= nil then return end
  -- In gRPC-Web, Envoy's own body ends with a line break.
  local body = percent_decoded(headers:get('grpc-message') or ''):gsub('%s+$', '')
  local message, code = body, grpc_codes[status]
  if body:sub(1, 9) == '{"error":' then
    message, code = unquoted(message_of(body)), body:match('"code":"([a-z_]+)"')
    headers:replace('grpc-message', percent_encoded(message))
    status = grpc_statuses[code] or status
    headers:replace('grpc-status', status)
    -- gRPC clients decide on a retry by the status alone. Tell them not to retry, because a retry cannot succeed.
    if code == 'request_too_large' then headers:add('grpc-retry-pushback-ms', '-1') end
    headers:add('quire-error', (body:gsub('[^\32-\126]', '?')))
  else
    local size = status == '8' and size_error(body)
    if size then headers:add('grpc-retry-pushback-ms', '-1') end
    if size == 'request' then code = 'request_too_large' end
    if size == 'answer' then
      status, code = '13', grpc_codes['13']
      headers:replace('grpc-status', status)
    end
    local is_wrong = status == '12' or code == 'request_too_large'
    local kind = (is_wrong and 'invalid_request_error') or (status == '8' and 'rate_limit_error') or 'server_error'
    local error = '{"error": {"message": ' .. quoted(body) .. ', "type": "' .. kind .. '", "param": null, "code": '
      .. (code and quoted(code) or 'null') .. '}}'
    headers:add('quire-error', error)
  end
  local retry_after = tonumber(headers:get('retry-after') or '')
  if retry_after ~= nil then headers:add('grpc-retry-pushback-ms', tostring(retry_after * 1000)) end
  headers:add('grpc-status-details-bin', base64(status_details(status, message, code or 'unknown', retry_after)))
end
