-- Errors in the shape of OpenAI's. The transcoder has turned the router's gRPC status into an HTTP code and a body of its
-- own, {"code":3,"message":"..."}. What the client should see stands in the header quire-error; an error that came without
-- it (a router that is gone, or failed in a way of its own) is shaped here from the transcoder's body.

local function shape(status, body)
  local kind = 'server_error'
  if status == 429 then
    kind = 'rate_limit_error'
  elseif status < 500 then
    kind = 'invalid_request_error'
  end
  local message = body:match('^{"code":%d+,"message":(".*")}$') or '"The request failed."'
  return '{"error": {"message": ' .. message .. ', "type": "' .. kind .. '", "param": null, "code": null}}'
end

function envoy_on_response(handle)
  local headers = handle:headers()
  -- To a gRPC client, not transcoded.
  if (headers:get('content-type') or ''):sub(1, 16) == 'application/grpc' then return end
  local error_body = headers:get('quire-error')
  for _, name in ipairs({'quire-error', 'grpc-status', 'grpc-message', 'grpc-accept-encoding'}) do
    headers:remove(name)
  end
  local status = tonumber(headers:get(':status'))
  if status < 400 then return end
  -- Waits for the body, and what was taken from the handle before may not be used after.
  local body = handle:body(true)
  local bytes = body:length() > 0 and body:getBytes(0, body:length()) or ''
  -- What is neither is an answer of Envoy's own, which has the right shape already.
  if error_body ~= nil or bytes == '' or bytes:sub(1, 8) == '{"code":' then
    handle:headers():replace('content-type', 'application/json')
    body:setBytes(error_body or shape(status, bytes))
  end
end
