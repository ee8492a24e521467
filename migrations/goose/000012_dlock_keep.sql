-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_keep(IN p_client BINARY(16))
SQL SECURITY INVOKER
COMMENT 'Keeps alive all that the client has waiting, and returns how much that is'
BEGIN
  DECLARE v_n INT;
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
  ROLLBACK AND NO CHAIN NO RELEASE;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ WRITE;
  UPDATE dlock_requests SET expires_at = UTC_TIMESTAMP(6) + INTERVAL 10 SECOND WHERE client = p_client AND state = 'waiting';
  SELECT COUNT(*) INTO v_n FROM dlock_requests WHERE client = p_client AND state = 'waiting'; -- ROW_COUNT() leaves out what has the same time already
  COMMIT AND NO CHAIN NO RELEASE;
  IF v_timeout > 2 OR v_safe THEN
    SET SESSION innodb_lock_wait_timeout = v_timeout, SESSION sql_safe_updates = v_safe;
  END IF;
  SELECT v_n;
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_keep;
