-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_break(
  IN p_prefix VARBINARY(255), IN p_name VARBINARY(255), IN p_token BIGINT, IN p_force BOOLEAN, IN p_client BINARY(16), IN p_window BIGINT)
SQL SECURITY INVOKER
COMMENT 'Returns how many requests the hold with that token had'
BEGIN
  DECLARE v_now DATETIME(6);
  DECLARE v_last, v_place, v_side, v_base, v_head BIGINT; -- as in the lock row
  DECLARE v_n INT DEFAULT 0;
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
    SELECT COUNT(*) INTO v_n FROM dlock_requests
      WHERE prefix = p_prefix AND name = p_name AND token = p_token AND state IN ('granted', 'holding') AND expires_at > v_now;
    IF p_force THEN -- of a hold only the request that began it has a positive place
      SET v_side = v_side + 1;
      UPDATE dlock_requests SET state = 'ended', broken = TRUE, place = IF(place > 0, -v_side, place), expires_at = v_now + INTERVAL ttl_us MICROSECOND
        WHERE prefix = p_prefix AND name = p_name AND token = p_token AND state IN ('granted', 'holding') AND expires_at > v_now;
    ELSE
      UPDATE dlock_requests SET broken = TRUE
        WHERE prefix = p_prefix AND name = p_name AND token = p_token AND state IN ('granted', 'holding') AND expires_at > v_now;
    END IF;
    CALL dlock_settle(p_prefix, p_name, p_client, p_window, v_now, v_base, v_side, v_last, v_head, v_news);
    UPDATE dlock_locks SET last_token = v_last, last_side = v_side, head = v_head WHERE prefix = p_prefix AND name = p_name;
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  IF v_timeout > 2 OR v_safe THEN
    SET SESSION innodb_lock_wait_timeout = v_timeout, SESSION sql_safe_updates = v_safe;
  END IF;
  SELECT v_n, v_news;
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_break;
