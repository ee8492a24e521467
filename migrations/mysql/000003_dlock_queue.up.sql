CREATE OR REPLACE SQL SECURITY INVOKER VIEW dlock_queue AS
SELECT CONVERT(prefix USING utf8mb4) AS prefix, CONVERT(name USING utf8mb4) AS name,
  IF(state = 'waiting', 'waits', 'holds') AS status, mode, permits, token, expires_at, arrived_at, label,
  HEX(owner) AS owner, HEX(client) AS client, HEX(id) AS id, broken, fixed
FROM dlock_requests
WHERE state IN ('waiting', 'granted', 'holding') AND expires_at > UTC_TIMESTAMP(6)
