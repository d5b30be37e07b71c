"""The duties of a store as Redis scripts: Redis runs each to its end before anything else.

Owns the layout of the keys. Leases run on the server's clock. A row is a hash:

    <prefix>r:<call>:<round>   a answers, f fence, s state, l lease, x expires, b body
    <prefix>m:<call>           the mark
    <prefix>calls              calls by the expiry of their mark
    <prefix>e:<id>             c call, k key, n function, a arguments, f fence, s state, l lease,
                               x expires, t started, d settled, r result, w error
    <prefix>ec:<call>          effects of a call by their start
    <prefix>s:<call>:<round>   a segment
    <prefix>o:<owner>          segments of an owner by their expiry

Expiry is Redis's own, set a little later than asked because clocks differ. The first command of a
script that writes is one that takes memory: a full server refuses it, and with it the script; once
a script has written, Redis refuses nothing more.
"""

_NOW = """
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local function extend(key, expires, grace)
  local known = tonumber(redis.call('HGET', key, 'x') or '0')
  if expires > known then
    redis.call('HSET', key, 'x', expires)
    redis.call('PEXPIREAT', key, math.ceil((expires + grace) * 1000))
  end
end
"""

_HELD = """
local function held(key, fence)
  local row = redis.call('HMGET', key, 'f', 's')
  return row[1] == fence and row[2] == 'running'
end
"""

CLAIM = (
    _NOW
    + """
local rkey, mkey, calls = KEYS[1], KEYS[2], KEYS[3]
local call, round, answers, lease = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local expires, tries, grace = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local row = redis.call('HMGET', rkey, 'a', 'f', 's', 'l', 'b')
if not row[1] then
  local mark = redis.call('GET', mkey)
  if mark and round <= tonumber(mark) then return {'spent', 'evicted'} end
  redis.call('HSET', rkey, 'a', answers, 'f', 1, 's', 'running', 'l', now + lease)
  extend(rkey, expires, grace)
  redis.call('SET', mkey, round)
  redis.call('PEXPIREAT', mkey, math.ceil((expires + grace) * 1000))
  redis.call('ZADD', calls, expires, call)
  redis.call('ZREMRANGEBYSCORE', calls, '-inf', now - grace)
  return {'mine', 1, false}
end
if row[1] ~= answers then return {'spent', 'other-answers'} end
if row[3] == 'recorded' then
  if row[5] then return {'recorded', row[5]} end
  return {'spent', 'evicted'}
end
if row[3] == 'spent' then return {'spent', 'released'} end
if row[3] == 'running' and tonumber(row[4]) > now then return {'running'} end
if tonumber(row[2]) > tries then return {'spent', 'tries'} end
local fence = redis.call('HINCRBY', rkey, 'f', 1)
redis.call('HSET', rkey, 's', 'running', 'l', now + lease)
extend(rkey, expires, grace)
return {'mine', fence, row[5]}
"""
)

RENEW = (
    _NOW
    + _HELD
    + """
if not held(KEYS[1], ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'l', now + tonumber(ARGV[2]))
return 1
"""
)

RECORD = (
    _NOW
    + _HELD
    + """
if not held(KEYS[1], ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 's', 'recorded')
if ARGV[2] == '1' then redis.call('HSET', KEYS[1], 'b', ARGV[3])
else redis.call('HDEL', KEYS[1], 'b') end
extend(KEYS[1], tonumber(ARGV[4]), tonumber(ARGV[5]))
return 1
"""
)

RELEASE = (
    _HELD
    + """
if held(KEYS[1], ARGV[1]) then redis.call('HSET', KEYS[1], 's', ARGV[2]) end
return 1
"""
)

STATE = (
    _NOW
    + """
local row = redis.call('HMGET', KEYS[1], 's', 'l')
if row[1] ~= 'running' then return {0, '0'} end
local left = tonumber(row[2]) - now
if left <= 0 then return {0, '0'} end
return {1, string.format('%.6f', left)}
"""
)

BEGIN = (
    _NOW
    + _HELD
    + """
local rkey, ekey, ckey, prefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local id, call, key, name, args = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local lease, expires, grace = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local retry, window, fence = ARGV[10] == '1', tonumber(ARGV[11]), ARGV[12]
if fence ~= '' and not held(rkey, fence) then return {'fenced'} end
local row = redis.call('HMGET', ekey, 'n', 'a', 's', 'l', 'd', 'r', 'w', 'c')
local state = row[3]
if state and state ~= 'free' then
  local over = window and row[5] and now >= tonumber(row[5]) + window
  if not over then
    if row[1] ~= name or row[2] ~= args then return {'mismatch', row[1]} end
    if state == 'failed' then return {'failed', row[7]} end
    if state == 'done' then return {'settled', row[6], row[8]} end
    if tonumber(row[4]) > now then return {'busy'} end
    if not retry then return {'uncertain', row[8]} end
  end
end
redis.call('HSET', ekey, 'c', call, 'k', key, 'n', name, 'a', args, 's', 'started',
           'l', now + lease, 't', now)
if row[8] and row[8] ~= call then redis.call('ZREM', prefix .. 'ec:' .. row[8], id) end
redis.call('HDEL', ekey, 'd', 'r', 'w')
local begun = redis.call('HINCRBY', ekey, 'f', 1)
extend(ekey, expires, grace)
redis.call('ZADD', ckey, now, id)
redis.call('ZADD', prefix .. 'calls', 'GT', expires, call)
local ends = math.ceil((expires + grace) * 1000)
if redis.call('PTTL', ckey) < ends - now * 1000 then redis.call('PEXPIREAT', ckey, ends) end
if fence ~= '' and ARGV[13] == '1' and redis.call('HEXISTS', rkey, 'b') == 0 then
  redis.call('HSET', rkey, 'b', ARGV[14])
end
return {'begun', begun}
"""
)

_STARTED = """
local function started(key, fence)
  local row = redis.call('HMGET', key, 'f', 's')
  return row[1] == fence and row[2] == 'started'
end
"""

HOLD = (
    _NOW
    + _STARTED
    + """
if not started(KEYS[1], ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'l', now + tonumber(ARGV[2]))
return 1
"""
)

SETTLE = (
    _NOW
    + _STARTED
    + """
if not started(KEYS[1], ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 's', ARGV[2], 'd', now, ARGV[3], ARGV[4])
return 1
"""
)

ABANDON = (
    _STARTED
    + """
if started(KEYS[1], ARGV[1]) then redis.call('HSET', KEYS[1], 's', 'free') end
return 1
"""
)

EFFECTS = (
    _NOW
    + """
local found = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local row = redis.call('HMGET', ARGV[1] .. 'e:' .. id, 'k', 'n', 's', 't', 'd', 'l')
  if row[3] and row[3] ~= 'free' then
    local state = row[3]
    if state == 'started' and tonumber(row[6]) <= now then state = 'uncertain' end
    found[#found + 1] = {row[1], row[2], state, row[4], row[5]}
  end
end
return found
"""
)

CALLS = """
local found = {}
for _, call in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, tonumber(ARGV[2]) - 1)) do
  local mark = redis.call('GET', ARGV[1] .. 'm:' .. call)
  if mark then
    local row = redis.call('HMGET', ARGV[1] .. 'r:' .. call .. ':' .. mark, 's', 'x')
    if row[1] then found[#found + 1] = {call, tonumber(mark), row[1], row[2]} end
  elseif redis.call('EXISTS', ARGV[1] .. 'ec:' .. call) == 1 then
    found[#found + 1] = {call, 1, 'unredeemed', redis.call('ZSCORE', KEYS[1], call)}
  end
end
return found
"""

DECIDE = (
    _NOW
    + """
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local ekey = ARGV[1] .. 'e:' .. id
  local row = redis.call('HMGET', ekey, 'k', 's', 'l')
  if row[1] == ARGV[2] and row[2] == 'started' and tonumber(row[3]) <= now then
    redis.call('HINCRBY', ekey, 'f', 1)
    if ARGV[3] == '1' then redis.call('HSET', ekey, 's', 'done', 'd', now, 'r', ARGV[4])
    else redis.call('HSET', ekey, 's', 'free') end
    return 1
  end
end
return 0
"""
)

KEEP = (
    _NOW
    + """
local skey, okey, member = KEYS[1], KEYS[2], ARGV[1]
local quota, expires = tonumber(ARGV[3]), tonumber(ARGV[4])
local held = redis.call('ZCOUNT', okey, '(' .. string.format('%.6f', now), '+inf')
local known = redis.call('ZSCORE', okey, member)
if known and tonumber(known) > now then held = held - 1 end
if held >= quota then return 0 end
redis.call('SET', skey, ARGV[2])
redis.call('ZREMRANGEBYSCORE', okey, '-inf', now)
redis.call('PEXPIREAT', skey, math.floor(expires * 1000))
redis.call('ZADD', okey, expires, member)
local last = redis.call('ZREVRANGE', okey, 0, 0, 'WITHSCORES')
redis.call('PEXPIREAT', okey, math.ceil(tonumber(last[2]) * 1000))
return 1
"""
)
