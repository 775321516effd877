-- Removes the prefix `root_path` from a request's path before Envoy chooses the route. Other paths stay unchanged.

function strip_root_path(handle)
  local headers = handle:headers()
  local path = headers:get(':path')
  if path == nil or path:sub(1, #root_path) ~= root_path then return end
  local rest = path:sub(#root_path + 1)
  local first = rest:sub(1, 1)
  if first ~= '/' and first ~= '?' and first ~= '' then return end
  headers:replace(':path', first == '/' and rest or '/' .. rest)
  handle:clearRouteCache()
end
