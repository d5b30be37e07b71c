"""The operations of a store as Redis scripts: Redis runs each to its end before anything else.

Owns the layout of the keys. Leases and lifetimes run on the clock of Redis. `<prefix>` ends with
the name of the server whose rows they are. A row is a hash:

    <prefix>r:<call>:<round>    a answers, f fence, s state, l lease, x expires, b body,
                                q failures, t started, u tool, v caller
    <prefix>m:<call>            the mark
    <prefix>calls               calls by the expiry of their mark
    <prefix>e:<id>              c call, k key, n function, a arguments, f fence, s state, l lease,
                                x expires, t started, d settled, r result, w error, o nonce,
                                h shared, u tool, v caller, g restart, y seed, z generation,
                                q equal, i inputs, j answers, p told, m stands until
    <prefix>q:<equal>           effects that equal calls of one caller find, by their start
    <prefix>l:<restart>         unfinished calls that can be started over, by their latest effect
    <prefix>ec:<call>           effects of a call by their start
    <prefix>started             effects that were begun and not settled, by the end of their lease
    <prefix>s:<call>:<round>:<digest>   a segment
    <prefix>sc:<call>           segments of a call, with their owner
    <prefix>b:<owner>           segments of an owner: size and expiry

Redis removes what has expired, a little later than asked because clocks differ; a row that somebody
holds is kept for as long as it is held. The first command of a script that writes is one that takes
memory: a full server refuses it, and with it the script; once a script has written, Redis refuses
nothing more.
"""

from antiphon.ports import ROUNDS_PER_START

GRACE = 300
"""Seconds that an expired row is kept: the clocks of machines differ, if only a little."""

_NOW = f"""
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local function outlive(key, seconds)
  local need = math.ceil((seconds + {GRACE}) * 1000)
  if redis.call('PTTL', key) < need then redis.call('PEXPIRE', key, need) end
end
local function keep_until(key, at)
  local known = tonumber(redis.call('HGET', key, 'x') or '0')
  if at > known then redis.call('HSET', key, 'x', at) else at = known end
  outlive(key, at - now)
end
local function live_until(key, at)
  redis.call('HSET', key, 'x', at)
  redis.call('PEXPIRE', key, math.max(1, math.ceil((at - now + {GRACE}) * 1000)))
end
"""

_HELD = """
local function held(key, fence)
  local row = redis.call('HMGET', key, 'f', 's')
  return row[1] == fence and row[2] == 'running'
end
"""

_FREEING = """
local function free_segments(prefix, call, upto)
  local index = prefix .. 'sc:' .. call
  local found = redis.call('HGETALL', index)
  for i = 1, #found, 2 do
    local round = tonumber(string.match(found[i], '^(%d+):'))
    if round <= upto then
      redis.call('DEL', prefix .. 's:' .. call .. ':' .. found[i])
      redis.call('HDEL', prefix .. 'b:' .. found[i + 1], call .. ':' .. found[i])
      redis.call('HDEL', index, found[i])
    end
  end
end
local function end_effects(prefix, call, ttl)
  local open_end = has_open_end(prefix, call)
  for _, id in ipairs(redis.call('ZRANGE', prefix .. 'ec:' .. call, 0, -1)) do
    local key = prefix .. 'e:' .. id
    local row = redis.call('HMGET', key, 's', 'h', 'x', 'g', 'q', 'm', 'l')
    if row[1] and row[1] ~= 'started' and tonumber(row[7]) > now then
      redis.call('HSET', key, 'l', now)
    end
    local kept = row[5] and row[5] ~= '' and (open_end or tonumber(row[6] or '0') > now)
    if row[4] and row[4] ~= '' then
      redis.call('HSET', key, 'g', '')
      redis.call('ZREM', prefix .. 'l:' .. row[4], call)
    end
    if row[1] and row[1] ~= 'started' and row[2] ~= '1' and not kept then
      redis.call('HSET', key, 'p', '1')
      if ttl <= 0 then
        forget_equal(prefix, key, id, row[5])
        redis.call('DEL', key)
      else live_until(key, math.min(tonumber(row[3]), now + ttl)) end
    end
  end
end
"""

_OPEN_END = """
local function has_open_end(prefix, call)
  for _, id in ipairs(redis.call('ZRANGE', prefix .. 'ec:' .. call, 0, -1)) do
    local row = redis.call('HMGET', prefix .. 'e:' .. id, 's', 'l', 'q')
    if row[3] and row[3] ~= '' and (row[1] == 'failed'
        or (row[1] == 'started' and tonumber(row[2]) <= now)) then return true end
  end
  return false
end
local function forget_equal(prefix, key, id, equal)
  if equal and equal ~= '' then redis.call('ZREM', prefix .. 'q:' .. equal, id) end
  redis.call('HSET', key, 'q', '')
end
"""

_GENERATION = f"""
local function generation(round) return math.floor(round / {ROUNDS_PER_START}) end
"""

CLAIM = (
    _NOW
    + _GENERATION
    + """
local rkey, mkey, calls = KEYS[1], KEYS[2], KEYS[3]
local call, round, answers, lease = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local ttl, tries, tool, caller = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8]
local row = redis.call('HMGET', rkey, 'a', 'f', 's', 'l', 'b', 'q', 'x')
if ttl <= 0 and (not row[1] or tonumber(row[7]) <= now) then return {'spent', 'expired'} end
local mark = redis.call('GET', mkey)
if mark and generation(round) < generation(tonumber(mark)) then return {'spent', 'superseded'} end
if not row[1] then
  if mark and round <= tonumber(mark) then return {'spent', 'evicted'} end
  redis.call('HSET', rkey, 'a', answers, 'f', 1, 's', 'running', 'l', now + lease, 'q', 0,
             't', now, 'u', tool, 'v', caller)
  keep_until(rkey, now + ttl)
  outlive(rkey, lease)
  redis.call('SET', mkey, round, 'KEEPTTL')
  outlive(mkey, math.max(ttl, lease))
  redis.call('ZADD', calls, now + ttl, call)
  redis.call('ZREMRANGEBYSCORE', calls, '-inf', now - 86400)
  return {'mine', 1, false}
end
if row[1] ~= answers then return {'spent', 'other-answers'} end
if row[3] == 'recorded' then
  if row[5] then return {'recorded', row[5]} end
  return {'spent', 'evicted'}
end
if row[3] == 'spent' then return {'spent', 'released'} end
if row[3] == 'running' and tonumber(row[4]) > now then return {'running'} end
if tonumber(row[6] or '0') > tries then return {'spent', 'tries'} end
local fence = redis.call('HINCRBY', rkey, 'f', 1)
redis.call('HSET', rkey, 's', 'running', 'l', now + lease)
keep_until(rkey, now + ttl)
outlive(rkey, lease)
outlive(mkey, math.max(ttl, lease))
return {'mine', fence, row[5]}
"""
)

RENEW = (
    _NOW
    + _HELD
    + """
if not held(KEYS[1], ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'l', now + tonumber(ARGV[2]))
outlive(KEYS[1], tonumber(ARGV[2]))
outlive(KEYS[2], tonumber(ARGV[2]))
return 1
"""
)

RECORD = (
    _NOW
    + _HELD
    + _OPEN_END
    + _FREEING
    + """
local rkey, mkey, prefix, call, round = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local ttl = tonumber(ARGV[7])
if not held(rkey, ARGV[4]) then return 0 end
redis.call('HSET', rkey, 's', 'recorded')
if ARGV[5] == '1' then redis.call('HSET', rkey, 'b', ARGV[6])
else redis.call('HDEL', rkey, 'b') end
live_until(rkey, now + ttl)
outlive(mkey, ttl)
redis.call('ZADD', prefix .. 'calls', now + ttl, call)
free_segments(prefix, call, round)
if ARGV[8] == '1' then end_effects(prefix, call, ttl) end
return 1
"""
)

END_CALL = (
    _NOW
    + _OPEN_END
    + _FREEING
    + """
local mark = ARGV[4] ~= '' and redis.call('GET', ARGV[1] .. 'm:' .. ARGV[2])
if mark and tonumber(mark) > tonumber(ARGV[4]) then return 0 end
free_segments(ARGV[1], ARGV[2], math.huge)
end_effects(ARGV[1], ARGV[2], tonumber(ARGV[3]))
return 1
"""
)

RELEASE = (
    _HELD
    + """
if held(KEYS[1], ARGV[1]) then
  redis.call('HSET', KEYS[1], 's', ARGV[2])
  redis.call('HINCRBY', KEYS[1], 'q', ARGV[3])
end
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

_IN_EQUAL_CALL = """
local function stands_for(prefix, row, answers, inputs)
  if row[2] == 'started' or row[2] == 'failed' then return true end
  if row[2] ~= 'done' or (row[6] ~= answers and row[5] ~= inputs) then return false end
  return row[7] ~= '1' or tonumber(row[8] or '0') > now or has_open_end(prefix, row[1])
end
local function in_equal_call(prefix, id, call, names, answers, inputs)
  for _, name in ipairs(names) do
    for _, other in ipairs(redis.call('ZRANGE', prefix .. 'q:' .. name, 0, -1)) do
      local row = redis.call('HMGET', prefix .. 'e:' .. other, 'c', 's', 'l', 'x', 'i', 'j', 'p',
                             'm', 'a', 'r', 'w')
      if other ~= id and row[1] and row[1] ~= call and tonumber(row[4]) > now
          and stands_for(prefix, row, answers, inputs) then
        local state = row[2] == 'started' and 'uncertain' or row[2]
        local waits = state ~= 'failed' and row[7] ~= '1'
        if waits and tonumber(row[3]) > now then state = 'running' end
        return {'equal', row[1], other, state, row[9], row[5], row[10], row[11]}
      end
    end
  end
end
"""

BEGIN = (
    _NOW
    + _HELD
    + _OPEN_END
    + _IN_EQUAL_CALL
    + """
local rkey, ekey, ckey, started, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local id, call, key, name, args = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local lease, ttl = tonumber(ARGV[7]), tonumber(ARGV[8])
local retry, window, fence = ARGV[9] == '1', tonumber(ARGV[10]), ARGV[11]
local nonce, tool, caller, shown = ARGV[14], ARGV[15], ARGV[16], ARGV[17]
local restart, seed, generation = ARGV[18], ARGV[19], tonumber(ARGV[20])
local answers, inputs, equal, names = ARGV[21], ARGV[22], ARGV[23] or '', {unpack(ARGV, 23)}
if fence ~= '' and not held(rkey, fence) then return {'fenced'} end
local row = redis.call('HMGET', ekey, 'n', 'a', 's', 'l', 'd', 'r', 'w', 'c', 'o', 'f',
                       'z', 'q')
local state = row[3]
if state and state ~= 'free' then
  local over = window and row[5] and now >= tonumber(row[5]) + window
  local free = not row[12] or row[12] == ''
  if window and state == 'failed' and free and row[8] ~= call then over = true end
  if not over then
    local other = row[1] ~= name or row[2] ~= args
    local older = other and tonumber(row[11] or '0') < generation
    if other and not older then return {'mismatch', row[1]} end
    if older and state ~= 'started' then over = true end
    if not over and state == 'failed' then return {'failed', row[7]} end
    if not over and state == 'done' then return {'settled', row[6], row[8]} end
    if not over and older then
      if tonumber(row[4]) > now then return {'busy'} end
      return {'uncertain', row[8]}
    end
    if not over and nonce ~= '' and row[9] == nonce then
      redis.call('HSET', ekey, 'l', now + lease)
      redis.call('ZADD', started, now + lease, id)
      return {'begun', tonumber(row[10])}
    end
    if not over and tonumber(row[4]) > now then return {'busy'} end
    if not over and not retry then return {'uncertain', row[8]} end
  end
end
if state ~= 'started' then
  local found = in_equal_call(prefix, id, call, names, answers, inputs)
  if found then return found end
end
redis.call('HSET', ekey, 'c', call, 'k', key, 'n', name, 'a', args, 's', 'started',
           'l', now + lease, 't', now, 'o', nonce, 'h', window and '1' or '0',
           'u', tool, 'v', caller, 'g', restart, 'y', seed, 'z', generation,
           'q', equal, 'i', inputs, 'j', answers, 'p', '0', 'm', '0', 'b', shown)
if row[12] and row[12] ~= equal then redis.call('ZREM', prefix .. 'q:' .. row[12], id) end
if equal ~= '' then
  redis.call('ZADD', prefix .. 'q:' .. equal, now, id)
  outlive(prefix .. 'q:' .. equal, ttl)
end
if restart ~= '' then
  redis.call('ZADD', prefix .. 'l:' .. restart, now, call)
  outlive(prefix .. 'l:' .. restart, ttl)
end
if row[8] and row[8] ~= call then redis.call('ZREM', prefix .. 'ec:' .. row[8], id) end
redis.call('HDEL', ekey, 'd', 'r', 'w')
local begun = redis.call('HINCRBY', ekey, 'f', 1)
keep_until(ekey, now + ttl)
outlive(ekey, lease)
redis.call('ZADD', ckey, now, id)
outlive(ckey, ttl)
redis.call('ZADD', started, now + lease, id)
redis.call('ZADD', prefix .. 'calls', 'GT', now + ttl, call)
if fence ~= '' then
  if ARGV[12] == '1' then redis.call('HSET', rkey, 'b', ARGV[13]) end
  keep_until(rkey, now + ttl)
  outlive(prefix .. 'm:' .. call, ttl)
  local round = string.match(rkey, ':(%d+)$')
  local index = prefix .. 'sc:' .. call
  local segments = redis.call('HGETALL', index)
  for i = 1, #segments, 2 do
    if string.match(segments[i], '^(%d+):') == round then
      outlive(prefix .. 's:' .. call .. ':' .. segments[i], ttl)
      outlive(index, ttl)
    end
  end
end
return {'begun', begun}
"""
)

TAKE_OVER = (
    _NOW
    + _GENERATION
    + _OPEN_END
    + _FREEING
    + f"""
local index, prefix, name, ttl = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
for _, call in ipairs(redis.call('ZREVRANGE', index, 0, -1)) do
  local seed, ends, found = nil, now + ttl, {{}}
  for _, id in ipairs(redis.call('ZRANGE', prefix .. 'ec:' .. call, 0, -1)) do
    local key = prefix .. 'e:' .. id
    local row = redis.call('HMGET', key, 's', 'g', 'y', 'x')
    if row[1] and row[1] ~= 'free' and row[2] == name and tonumber(row[4]) > now then
      seed, found[#found + 1], ends = row[3], key, math.max(ends, tonumber(row[4]))
    end
  end
  if seed then
    local mkey = prefix .. 'm:' .. call
    local mark = redis.call('GET', mkey)
    local next = generation(tonumber(mark or '1')) + 1
    redis.call('SET', mkey, string.format('%.0f', next * {ROUNDS_PER_START}), 'KEEPTTL')
    outlive(mkey, ends - now)
    if mark and redis.call('HGET', prefix .. 'r:' .. call .. ':' .. mark, 's') then
      redis.call('HSET', prefix .. 'r:' .. call .. ':' .. mark, 's', 'superseded')
    end
    free_segments(prefix, call, math.huge)
    for _, key in ipairs(found) do keep_until(key, now + ttl) end
    outlive(prefix .. 'ec:' .. call, ttl)
    outlive(index, ttl)
    redis.call('ZADD', prefix .. 'calls', 'GT', now + ttl, call)
    return {{call, seed, next, mark}}
  end
  redis.call('ZREM', index, call)
end
return {{}}
"""
)

_STARTED = """
local function is_started(key, fence)
  local row = redis.call('HMGET', key, 'f', 's')
  return row[1] == fence and row[2] == 'started'
end
"""

HOLD = (
    _NOW
    + _STARTED
    + """
if not is_started(KEYS[1], ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'l', now + tonumber(ARGV[2]))
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), ARGV[3])
outlive(KEYS[1], tonumber(ARGV[2]))
return 1
"""
)

SETTLE = (
    _NOW
    + _STARTED
    + _OPEN_END
    + """
if not is_started(KEYS[1], ARGV[1]) then return 0 end
local told, stands = ARGV[6] == '1', ARGV[8] ~= '0' and now + tonumber(ARGV[8]) or 0
redis.call('HSET', KEYS[1], 's', ARGV[2], 'd', now, ARGV[3], ARGV[4], 'p', ARGV[6], 'm', stands)
if ARGV[7] == '1' then redis.call('HSET', KEYS[1], 'l', now) end
if told and ARGV[2] == 'failed' then
  forget_equal(ARGV[9], KEYS[1], ARGV[5], redis.call('HGET', KEYS[1], 'q'))
end
local equal = redis.call('HGET', KEYS[1], 'q')
if ARGV[2] == 'failed' and equal and equal ~= '' then redis.call('ZADD', KEYS[2], now, ARGV[5])
else
  redis.call('ZREM', KEYS[2], ARGV[5])
  redis.call('HDEL', KEYS[1], 'b')
end
return 1
"""
)

TELL = (
    _NOW
    + _OPEN_END
    + """
local prefix, call, told = ARGV[1], ARGV[2], ARGV[3]
if has_open_end(prefix, call) then return 0 end
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local key = prefix .. 'e:' .. id
  local row = redis.call('HMGET', key, 's', 'p')
  if row[1] and row[2] ~= '1' then
    redis.call('HSET', key, 'p', told)
    if row[1] == 'done' then redis.call('HSET', key, 'l', now) end
  end
end
return 1
"""
)

ABANDON = (
    _STARTED
    + """
if is_started(KEYS[1], ARGV[1]) then
  redis.call('HSET', KEYS[1], 's', 'free')
  redis.call('HDEL', KEYS[1], 'b')
  redis.call('ZREM', KEYS[2], ARGV[2])
end
return 1
"""
)

EFFECTS = (
    _NOW
    + """
local found = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local row = redis.call('HMGET', ARGV[1] .. 'e:' .. id, 'k', 'n', 's', 't', 'd', 'l', 'u',
                         'v', 'q', 'b')
  if row[3] and row[3] ~= 'free' then
    local state = row[3]
    local blocks = state == 'failed' and row[9] and row[9] ~= ''
    if state == 'started' and tonumber(row[6]) <= now then state = 'uncertain' end
    found[#found + 1] = {row[1], row[2], state, row[4], row[5], row[7] or '', row[8] or '',
                         blocks and 1 or 0, row[10] or ''}
  end
end
return found
"""
)

_CALL = """
local function call_row(prefix, call)
  local mark = redis.call('GET', prefix .. 'm:' .. call)
  local row = {}
  if mark then
    row = redis.call('HMGET', prefix .. 'r:' .. call .. ':' .. mark, 's', 'x', 't', 'u', 'v')
  end
  local first, tool, caller, number, expires = row[3], row[4], row[5], 0, row[2]
  local effects, blocking = 0, 0
  for _, id in ipairs(redis.call('ZRANGE', prefix .. 'ec:' .. call, 0, -1)) do
    local e = redis.call('HMGET', prefix .. 'e:' .. id, 's', 'l', 't', 'u', 'v', 'x', 'q')
    if e[1] and e[1] ~= 'free' then
      effects = effects + 1
      if not first or tonumber(e[3]) < tonumber(first) then first = e[3] end
      tool, caller = tool or e[4], caller or e[5]
      if not row[1] and (not expires or tonumber(e[6]) > tonumber(expires)) then
        expires = e[6]
      end
      if e[1] == 'started' and tonumber(e[2]) <= now then number = number + 1 end
      if e[1] == 'failed' and e[7] and e[7] ~= '' then blocking = blocking + 1 end
    end
  end
  if not row[1] and effects == 0 then return nil end
  return {call, row[1] and tonumber(mark) or 1, row[1] or 'unredeemed', expires, first or '0',
          tool or '', caller or '', number, blocking}
end
"""

CALLS = (
    _NOW
    + _CALL
    + """
local found, at = {}, 0
local prefix, limit = ARGV[1], tonumber(ARGV[2])
while #found < limit do
  local page = redis.call('ZREVRANGE', KEYS[1], at, at + 199)
  if #page == 0 then break end
  for _, call in ipairs(page) do
    local row = #found < limit and call_row(prefix, call)
    if row then found[#found + 1] = row end
  end
  at = at + 200
end
return {redis.call('ZCOUNT', KEYS[1], now, '+inf'), found}
"""
)

UNCERTAIN_CALLS = (
    _NOW
    + _CALL
    + """
local found, total, seen = {}, 0, {}
local prefix, limit = ARGV[1], tonumber(ARGV[2])
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do
  local row = redis.call('HMGET', prefix .. 'e:' .. id, 'c', 's', 'q')
  local blocks = row[2] == 'failed' and row[3] and row[3] ~= ''
  if not row[1] or not (row[2] == 'started' or blocks) then redis.call('ZREM', KEYS[1], id)
  elseif not seen[row[1]] then
    seen[row[1]] = true
    total = total + 1
    if total <= limit then found[total] = call_row(prefix, row[1]) end
  end
end
return {total, found}
"""
)

DECIDE = (
    _NOW
    + """
local prefix, call = ARGV[1], ARGV[2]
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local ekey = prefix .. 'e:' .. id
  local row = redis.call('HMGET', ekey, 'k', 's', 'l', 'x', 'q')
  local failed = row[2] == 'failed' and row[5] and row[5] ~= ''
  if row[1] == ARGV[3] and (failed or (row[2] == 'started' and tonumber(row[3]) <= now)) then
    redis.call('HINCRBY', ekey, 'f', 1)
    redis.call('HDEL', ekey, 'w')
    if ARGV[4] == '1' then
      redis.call('HSET', ekey, 's', 'done', 'd', now, 'r', ARGV[5], 'o', 'operator', 'p', '0',
                 'l', now, 'm', now + tonumber(ARGV[6]))
    else
      redis.call('HSET', ekey, 's', 'free')
      redis.call('HDEL', ekey, 'b')
    end
    redis.call('ZREM', prefix .. 'started', id)
    local ends = tonumber(row[4])
    local mark = redis.call('GET', prefix .. 'm:' .. call)
    local rkey = prefix .. 'r:' .. call .. ':' .. (mark or '')
    local state = mark and redis.call('HGET', rkey, 's')
    if state == 'released' or state == 'running' then
      redis.call('HSET', rkey, 'q', 0)
      keep_until(rkey, ends)
      outlive(prefix .. 'm:' .. call, ends - now)
    end
    local index = prefix .. 'sc:' .. call
    for _, segment in ipairs(redis.call('HKEYS', index)) do
      outlive(prefix .. 's:' .. call .. ':' .. segment, ends - now)
      outlive(index, ends - now)
    end
    return 1
  end
end
return 0
"""
)

UNSETTLE = (
    _NOW
    + """
local done = 0
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local ekey = ARGV[1] .. 'e:' .. id
  local row = redis.call('HMGET', ekey, 'k', 's', 'o', 'r')
  if row[1] == ARGV[2] and row[2] == 'done' and row[3] == 'operator' and row[4] == ARGV[3] then
    redis.call('HSET', ekey, 's', 'started', 'l', now)
    redis.call('HDEL', ekey, 'd', 'r', 'o')
    redis.call('ZADD', ARGV[1] .. 'started', now, id)
    done = 1
  end
end
return done
"""
)

KEEP = (
    _NOW
    + """
local skey, index, okey = KEYS[1], KEYS[2], KEYS[3]
local call, segment, data, owner = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local quota, ttl = tonumber(ARGV[5]), tonumber(ARGV[6])
local member, bytes, gone = call .. ':' .. segment, #data, {}
local known = redis.call('HGETALL', okey)
for i = 1, #known, 2 do
  local size, ends = string.match(known[i + 1], '^(%d+) (.+)$')
  if tonumber(ends) <= now then gone[#gone + 1] = known[i]
  elseif known[i] ~= member then bytes = bytes + tonumber(size) end
end
if bytes > quota then return 0 end
redis.call('SET', skey, data, 'PX', math.max(1, math.ceil(ttl * 1000)))
for _, old in ipairs(gone) do redis.call('HDEL', okey, old) end
redis.call('HSET', okey, member, #data .. ' ' .. string.format('%.3f', now + ttl))
outlive(okey, ttl)
redis.call('HSET', index, segment, owner)
outlive(index, ttl)
return 1
"""
)
