-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_inspect(
  IN p_prefix VARBINARY(255), IN p_name VARBINARY(255), IN p_client BINARY(16), IN p_window BIGINT)
SQL SECURITY INVOKER
COMMENT 'Returns the requests, holders first, in order of arrival, and then whom it granted'
BEGIN
  DECLARE v_now DATETIME(6);
  DECLARE v_last, v_place, v_side, v_base, v_head BIGINT; -- as in the lock row
  DECLARE v_news LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE v_timeout INT DEFAULT @@innodb_lock_wait_timeout;
  DECLARE v_safe INT DEFAULT @@sql_safe_updates;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    SET SESSION innodb_lock_wait_timeout = v_timeout, SESSION sql_safe_updates = v_safe;
    RESIGNAL;
  END;
  IF v_timeout > 2 OR v_safe THEN
    SET SESSION innodb_lock_wait_timeout = LEAST(v_timeout, 2), SESSION sql_safe_updates = FALSE;
  END IF;
  CALL dlock_begin(p_prefix, p_name, FALSE, v_last, v_place, v_side, v_base, v_head, v_now);
  IF v_last IS NOT NULL THEN
    CALL dlock_settle(p_prefix, p_name, p_client, p_window, v_now, v_base, v_side, v_last, v_head, v_news);
    UPDATE dlock_locks SET last_token = v_last, head = v_head WHERE prefix = p_prefix AND name = p_name;
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  IF v_timeout > 2 OR v_safe THEN
    SET SESSION innodb_lock_wait_timeout = v_timeout, SESSION sql_safe_updates = v_safe;
  END IF;
  SELECT HEX(id), HEX(owner), HEX(client), mode = 'shared', permits, token, ttl_us, fixed, broken,
      TIMESTAMPDIFF(MICROSECOND, v_now, expires_at), TIMESTAMPDIFF(MICROSECOND, arrived_at, v_now), HEX(label)
    FROM dlock_requests WHERE prefix = p_prefix AND name = p_name AND state IN ('waiting', 'granted', 'holding') AND expires_at > v_now
    ORDER BY place;
  ROLLBACK AND NO CHAIN NO RELEASE;
  SELECT v_news;
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_inspect;
