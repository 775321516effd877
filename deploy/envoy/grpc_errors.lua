-- Errors of the gateway to gRPC clients, as the router's: the message in words, and OpenAI's error object in `quire-error`.
-- Envoy's own answers carry that object as their grpc-message (local_reply_config), and gRPC's library answers for a router
-- without it, as for a method that does not exist.

-- The status of an error that Envoy knows by an HTTP code alone, by the code in its body. RESOURCE_EXHAUSTED is what gRPC
-- says of a message over a limit, DEADLINE_EXCEEDED of a request that never ended.
local grpc_statuses = {request_too_large = '8', request_timeout = '4'}
-- The `code` of OpenAI's error object for errors that came without it, by their status.
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

-- The text of a JSON string. Characters outside ASCII stay as they are written.
local function unquoted(json)
  return (json:sub(2, -2):gsub('\\(.)', function(letter) return escapes[letter] or (letter == 'u' and '\\u' or letter) end))
end

-- A JSON string, in ASCII alone.
local function quoted(text)
  return '"' .. text:gsub('[\\"]', '\\%0'):gsub('[^\32-\126]', '?') .. '"'
end

-- `message_of` finds the message in a body.
function shape_grpc_error(headers, message_of)
  local status = headers:get('grpc-status')
  if status == nil or status == '0' or headers:get('quire-error') ~= nil then return end
  local body = percent_decoded(headers:get('grpc-message') or '')
  if body:sub(1, 9) == '{"error":' then
    headers:replace('grpc-message', percent_encoded(unquoted(message_of(body))))
    local code = body:match('"code":"([a-z_]+)"')
    if grpc_statuses[code] then headers:replace('grpc-status', grpc_statuses[code]) end
    -- gRPC's clients try again by their status alone: no other try of this one will succeed.
    if code == 'request_too_large' then headers:add('grpc-retry-pushback-ms', '-1') end
    headers:add('quire-error', (body:gsub('[^\32-\126]', '?')))
  else
    local kind = (status == '12' and 'invalid_request_error') or (status == '8' and 'rate_limit_error') or 'server_error'
    local code = grpc_codes[status] and quoted(grpc_codes[status]) or 'null'
    local error = '{"error": {"message": ' .. quoted(body) .. ', "type": "' .. kind .. '", "param": null, "code": ' .. code .. '}}'
    headers:add('quire-error', error)
  end
  local retry_after = tonumber(headers:get('retry-after') or '')
  if retry_after ~= nil then headers:add('grpc-retry-pushback-ms', tostring(retry_after * 1000)) end
end
