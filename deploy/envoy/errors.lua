-- Errors in the shape of the path's API. The transcoder has turned the router's gRPC status into an HTTP code and a body of
-- its own, {"code":3,"message":"..."}. What the client should see stands in the header quire-error; an error that came
-- without it (a router that is gone, or failed in a way of its own) is shaped here from the transcoder's body. Envoy's own
-- answers come in OpenAI's shape (local_reply_config).

-- The error's `type` by status, where it is not the one for 4xx or 5xx, and OpenAI's `code`, as JSON, where it has one.
local openai_types = {[429] = 'rate_limit_error'}
local openai_codes = {[429] = '"rate_limit_exceeded"', [503] = '"unavailable"', [504] = '"timeout"'}
local anthropic_types = {
  [401] = 'authentication_error', [403] = 'permission_error', [404] = 'not_found_error', [413] = 'request_too_large',
  [429] = 'rate_limit_error', [503] = 'overloaded_error', [504] = 'timeout_error',
}

-- Each takes the status and the message, which is JSON, and returns a body.
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

-- The first JSON string that stands as a "message" in the body.
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

-- Anthropic's errors say which request they are about. Only ids that need no escaping: a client may have made it.
local function with_request_id(body, id)
  if id == nil or id:find('[^%w._:-]') then return body end
  return body:gsub('}%s*$', ', "request_id": "' .. id .. '"}', 1)
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local content_type = headers:get('content-type') or ''
  -- To a gRPC client, not transcoded.
  if content_type:sub(1, 16) == 'application/grpc' then
    -- What a page may read depends on whose it is (CORS).
    if content_type:sub(17, 20) == '-web' then headers:add('vary', 'origin') end
    shape_grpc_error(headers, message_of)
    return
  end
  -- Proxies would gather a stream before they pass it on.
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
  -- What a page may read depends on whose it is (CORS).
  headers:add('vary', 'origin')
  local status = tonumber(headers:get(':status'))
  if status < 400 then return end
  local api = handle:metadata():get('api') or 'openai'
  local request_id = headers:get('request-id')
  -- Waits for the body, and what was taken from the handle before may not be used after.
  local body = handle:body(true)
  local bytes = body:length() > 0 and body:getBytes(0, body:length()) or ''
  -- The transcoder begins its words with a field's name, which is empty where the body as a whole is at fault.
  if bytes:find('is not valid: : ', 1, true) then body:setBytes((bytes:gsub('is not valid: : ', 'is not valid: ', 1))) end
  -- What is neither is an answer of Envoy's own, which has OpenAI's shape already.
  if error_body ~= nil or bytes == '' or bytes:sub(1, 8) == '{"code":' or api ~= 'openai' then
    handle:headers():replace('content-type', 'application/json')
    local shaped = error_body or shapes[api](status, message_of(bytes))
    body:setBytes(api == 'anthropic' and with_request_id(shaped, request_id) or shaped)
  end
end
