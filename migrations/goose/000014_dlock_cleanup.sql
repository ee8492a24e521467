-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_cleanup(IN p_unused BIGINT, IN p_most INT)
SQL SECURITY INVOKER
COMMENT 'Removes the rows of at most so many names that nobody uses, or has come to for so long (µs). Returns of how many'
BEGIN
  DECLARE v_now DATETIME(6);
  DECLARE v_last, v_place, v_side, v_base, v_head BIGINT; -- as in the lock row
  DECLARE v_prefix, v_name VARBINARY(255);
  DECLARE v_end BOOLEAN DEFAULT FALSE;
  DECLARE v_n INT DEFAULT 0;
  DECLARE v_timeout INT DEFAULT @@innodb_lock_wait_timeout;
  DECLARE v_safe INT DEFAULT @@sql_safe_updates;
  DECLARE unused CURSOR FOR SELECT prefix, name FROM dlock_locks l
    WHERE used_at <= UTC_TIMESTAMP(6) - INTERVAL p_unused MICROSECOND AND NOT EXISTS (
      SELECT 1 FROM dlock_requests r WHERE r.prefix = l.prefix AND r.name = l.name AND r.expires_at > UTC_TIMESTAMP(6)) LIMIT p_most;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_end = TRUE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    SET SESSION innodb_lock_wait_timeout = v_timeout, SESSION sql_safe_updates = v_safe;
    RESIGNAL;
  END;
  IF v_timeout > 2 OR v_safe THEN
    SET SESSION innodb_lock_wait_timeout = LEAST(v_timeout, 2), SESSION sql_safe_updates = FALSE;
  END IF;
  OPEN unused;
  names: LOOP
    FETCH unused INTO v_prefix, v_name;
    IF v_end THEN
      LEAVE names;
    END IF;
    CALL dlock_begin(v_prefix, v_name, FALSE, v_last, v_place, v_side, v_base, v_head, v_now);
    IF v_last IS NOT NULL AND NOT EXISTS (SELECT 1 FROM dlock_requests WHERE prefix = v_prefix AND name = v_name AND expires_at > v_now) THEN
      DELETE FROM dlock_requests WHERE prefix = v_prefix AND name = v_name;
      DELETE FROM dlock_locks WHERE prefix = v_prefix AND name = v_name;
      SET v_n = v_n + 1;
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
  END LOOP;
  CLOSE unused;
  IF v_timeout > 2 OR v_safe THEN
    SET SESSION innodb_lock_wait_timeout = v_timeout, SESSION sql_safe_updates = v_safe;
  END IF;
  SELECT v_n;
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_cleanup;
