-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_begin(
  IN p_prefix VARBINARY(255), IN p_name VARBINARY(255), IN p_create BOOLEAN,
  OUT o_token BIGINT, OUT o_place BIGINT, OUT o_side BIGINT, OUT o_base BIGINT, OUT o_head BIGINT, OUT o_now DATETIME(6))
SQL SECURITY INVOKER
COMMENT 'begins a transaction that holds the lock row of a name; o_token is NULL if there is none. o_now is the time after that'
BEGIN
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  ROLLBACK AND NO CHAIN NO RELEASE;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ WRITE;
  SELECT last_token, last_place, last_side, base, head INTO o_token, o_place, o_side, o_base, o_head
    FROM dlock_locks WHERE prefix = p_prefix AND name = p_name FOR UPDATE;
  IF o_token IS NULL AND p_create THEN
    INSERT INTO dlock_locks (prefix, name, last_token, last_place, last_side, base, head, used_at)
      VALUES (p_prefix, p_name, 0, 0, 0, 1, 1, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE used_at = VALUES(used_at);
    UPDATE dlock_locks l, (
        SELECT COALESCE(MAX(token), 0) AS t, COALESCE(MAX(place), 0) AS p, COALESCE(MIN(place), 0) AS s,
            MIN(IF(place > 0, place, NULL)) AS b, MIN(IF(state = 'waiting', place, NULL)) AS h
          FROM dlock_requests WHERE prefix = p_prefix AND name = p_name) r
      SET l.last_token = r.t, l.last_place = GREATEST(r.p, 0), l.last_side = -LEAST(r.s, 0),
        l.base = COALESCE(r.b, 1), l.head = COALESCE(r.h, GREATEST(r.p, 0) + 1)
      WHERE l.prefix = p_prefix AND l.name = p_name AND l.last_token = 0;
    SELECT last_token, last_place, last_side, base, head INTO o_token, o_place, o_side, o_base, o_head
      FROM dlock_locks WHERE prefix = p_prefix AND name = p_name FOR UPDATE;
  END IF;
  SET o_now = UTC_TIMESTAMP(6);
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_begin;
