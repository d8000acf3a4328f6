-- uses:
-- Foreign groups: consumer groups that other software made on our streams, as the server describes them.

local function as_table(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

-- Members, most recently seen first; none where the stream or the group is gone.
local function members_of(stream, group)
  local found = redis.pcall('XINFO', 'CONSUMERS', stream, group)
  local members = {}
  if found.err then return members end
  for i, flat in ipairs(found) do members[i] = as_table(flat) end
  table.sort(members, function(a, b) return a.idle < b.idle end)
  return members
end

local function find_group(stream, name)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, flat in ipairs(groups.err and {} or groups) do
    local group = as_table(flat)
    if group.name == name then return group end
  end
  return nil
end
