-- KEYS[2]  the counter of fencing tokens; none if the lock has no tokens
--
-- Returns what holder returns, and the counter as text, or ''.
return {holder(), KEYS[2] and redis.call('GET', KEYS[2]) or ''}
