-- Formats errors for the API of the path. The transcoder turns a router's gRPC status into an HTTP code and its own
-- body, {"code":3,"message":"..."}. The header quire-error contains the body that the client should get instead. If an
-- error has no such header, because its router is gone or failed unexpectedly, this file formats the transcoder's body.
-- Envoy's own answers already have OpenAI's format (local_reply_config).

-- By status: the error's `type` if it differs from the default for 4xx or 5xx, and OpenAI's `code` as JSON if it has
-- one.
local openai_types = {[429] = 'rate_limit_error'}
local openai_codes = {
  [413] = '"request_too_large"', [429] = '"rate_limit_exceeded"', [431] = '"headers_too_large"',
  [503] = '"unavailable"', [504] = '"timeout"',
}
local anthropic_types = {
  [401] = 'authentication_error', [403] = 'permission_error', [404] = 'not_found_error', [413] = 'request_too_large',
  [429] = 'rate_limit_error', [503] = 'overloaded_error', [504] = 'timeout_error',
}

-- Each function takes the status and the message as a JSON string, and returns the body.
local shapes = {
  openai = function(status, message)
    local kind = openai_types[status] or (status < 500 and 'invalid_request_error' or 'server_error')
    local code = openai_codes[status] or 'null'
    return '{"error": {"message": ' .. message .. ', "type": "' .. kind .. '", "param": null, "code": ' .. code .. '}}'
  end,
  anthropic = function(status, message)
    local kind = anthropic_types[status] or (status < 500 and 'invalid_request_error' or 'api_error')
    return '{"type": "error", "error": {"type": "' .. kind .. '", "message": ' .. message .. '}}'
  end,
  ollama = function(_, message)
    return '{"error": ' .. message .. '}'
  end,
}
shapes.kserve = shapes.ollama

-- Returns the first "message" in the body, as a JSON string.
local function message_of(body)
  local _, last = body:find('"message":%s*"')
  if last == nil then return '"The request failed."' end
  local position = last + 1
  while true do
    local character = body:sub(position, position)
    if character == '' then return '"The request failed."' end
    if character == '"' then return body:sub(last, position) end
    position = position + (character == '\\' and 2 or 1)
  end
end

-- Tidies what the transcoder says of a body that is not the method's message: `options.n: invalid value "x" for type
-- ...`, or `: Expected a value.` and the place in the body. Names the field as the error's param.
local function tidied(body)
  local message = message_of(body)
  local at = body:find(message, 1, true)
  if at == nil or message:find('is not valid: ', 1, true) == nil then return body end
  local text = message:gsub('is not valid: : ', 'is not valid: ', 1):gsub('type%.googleapis%.com/', '')
  local line = text:find('\\n', 1, true)
  if line ~= nil then text = text:sub(1, line - 1) .. '"' end
  local field = text:match('is not valid: ([%w_%.%[%]]+): ')
  local rest = body:sub(at + #message)
  if field ~= nil then rest = rest:gsub('"param":%s*null', '"param": "' .. field .. '"', 1) end
  return body:sub(1, at - 1) .. text .. rest
end

-- Adds the request id, which Anthropic's errors contain. Ids that need escaping are left out: the client might have
-- chosen the id.
local function with_request_id(body, id)
  if id == nil or id:find('[^%w._:-]') then return body end
  return body:gsub('}%s*$', ', "request_id": "' .. id .. '"}', 1)
end

-- Removes the body of an answer to HEAD, keeping its length. Envoy removes only the bodies of its own answers. A client
-- would take any other body for the next answer on the connection.
local function strip_body(handle)
  local body = handle:body(true)
  local length = body:length()
  if length == 0 then return end
  body:setBytes('')
  handle:headers():replace('content-length', tostring(length))
end

-- What health checks over gRPC answer while the gateway drains: the bytes of a HealthCheckResponse with status
-- NOT_SERVING, and of a ServerReadyResponse that is false.
local not_ready_messages = {['health check'] = '\0\0\0\0\2\8\2', ['ready check'] = '\0\0\0\0\0'}

function envoy_on_response(handle)
  local headers = handle:headers()
  local is_head = (handle:streamInfo():dynamicMetadata():get('envoy.filters.http.lua') or {}).is_head
  -- The health filter adds this header to every answer while the gateway drains.
  local drains = headers:get('x-envoy-immediate-health-check-fail') ~= nil
  headers:remove('x-envoy-immediate-health-check-fail')
  headers:remove('x-envoy-upstream-healthchecked-cluster')
  local content_type = headers:get('content-type') or ''
  finish_refusal(headers)
  -- An answer to a gRPC client is not transcoded.
  if content_type:sub(1, 16) == 'application/grpc' then
    -- The CORS headers depend on the page's origin.
    if content_type:sub(17, 20) == '-web' then headers:add('vary', 'origin') end
    shape_grpc_error(headers, message_of)
    local not_ready = drains and not_ready_messages[handle:metadata():get('grpc') or '']
    if not_ready and headers:get('grpc-status') == nil then
      local body = handle:body(true)
      if body:length() > 0 then body:setBytes(not_ready) end
    end
    return
  end
  -- Keep proxies from buffering a stream.
  if content_type:sub(1, 17) == 'text/event-stream' or content_type:sub(1, 20) == 'application/x-ndjson' then
    headers:replace('cache-control', 'no-cache')
    headers:replace('x-accel-buffering', 'no')
  end
  local error_body = headers:get('quire-error')
  for _, name in ipairs({
    'quire-error', 'grpc-status', 'grpc-message', 'grpc-accept-encoding', 'grpc-status-details-bin', 'grpc-retry-pushback-ms',
  }) do
    headers:remove(name)
  end
  -- The CORS headers depend on the page's origin.
  headers:add('vary', 'origin')
  local status = tonumber(headers:get(':status'))
  if status < 400 then
    if is_head then strip_body(handle) end
    return
  end
  local api = handle:metadata():get('api') or 'openai'
  local request_id = headers:get('request-id')
  -- handle:body waits for the body. Objects taken from the handle before, such as `headers`, are invalid after it.
  local body = handle:body(true)
  local bytes = body:length() > 0 and body:getBytes(0, body:length()) or ''
  local size = status == 429 and error_body == nil and size_error(message_of(bytes))
  if size then
    status = size == 'answer' and 500 or 413
    handle:headers():replace(':status', tostring(status))
  end
  local tidy = error_body == nil and tidied(bytes) or bytes
  if tidy ~= bytes then body:setBytes(tidy) end
  -- In all other cases the body is Envoy's own and already has OpenAI's format.
  if error_body ~= nil or bytes == '' or bytes:sub(1, 8) == '{"code":' or api ~= 'openai' then
    handle:headers():replace('content-type', 'application/json')
    local shaped = error_body or shapes[api](status, message_of(bytes))
    body:setBytes(api == 'anthropic' and with_request_id(shaped, request_id) or shaped)
  end
  if is_head then strip_body(handle) end
end
