-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_renew(IN p_ids LONGTEXT CHARACTER SET ascii, IN p_n INT, IN p_ttl BIGINT)
SQL SECURITY INVOKER
COMMENT 'p_ids: a JSON array of p_n IDs in hexadecimal. Returns all if all hold, else how many stand, and then which, and whether they wait'
BEGIN
  DECLARE v_now DATETIME(6);
  DECLARE v_n, v_cut INT;
  DECLARE v_rows, v_tables, v_safe INT; -- as they were in the session
  DECLARE v_time DOUBLE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
    RESIGNAL;
  END;
  CALL dlock_enter(v_rows, v_tables, v_safe, v_time);
  ROLLBACK AND NO CHAIN NO RELEASE;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ WRITE;
  SET v_now = UTC_TIMESTAMP(6);
  UPDATE JSON_TABLE(p_ids, '$[*]' COLUMNS (hex CHAR(32) PATH '$')) j STRAIGHT_JOIN dlock_requests r ON r.id = UNHEX(j.hex)
    SET r.state = 'holding', r.ttl_us = p_ttl, r.expires_at = v_now + INTERVAL p_ttl MICROSECOND
    WHERE r.state IN ('granted', 'holding') AND r.broken = FALSE AND r.expires_at > v_now;
  SET v_n = ROW_COUNT();
  COMMIT AND NO CHAIN NO RELEASE;
  IF v_n = p_n THEN
    SELECT 'all', 0;
  ELSE
    -- KILL QUERY may leave a statement undone, and let the procedure go on: then some that hold
    -- have less time than they were to get, or the list is short. Both reads see the same, whoever
    -- gives back meanwhile.
    SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
    START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY;
    SELECT COUNT(*), COALESCE(SUM(r.state = 'granted' OR r.state = 'holding' AND r.expires_at < v_now + INTERVAL p_ttl MICROSECOND), 0) INTO v_n, v_cut
      FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (hex CHAR(32) PATH '$')) j STRAIGHT_JOIN dlock_requests r ON r.id = UNHEX(j.hex)
      WHERE r.state IN ('waiting', 'granted', 'holding') AND r.broken = FALSE AND r.expires_at > v_now;
    IF v_cut > 0 THEN
      SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'a statement was cut short';
    END IF;
    SELECT 'stand', v_n;
    SELECT LOWER(HEX(r.id)), r.state = 'waiting'
      FROM JSON_TABLE(p_ids, '$[*]' COLUMNS (hex CHAR(32) PATH '$')) j STRAIGHT_JOIN dlock_requests r ON r.id = UNHEX(j.hex)
      WHERE r.state IN ('waiting', 'granted', 'holding') AND r.broken = FALSE AND r.expires_at > v_now;
    COMMIT AND NO CHAIN NO RELEASE;
  END IF;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_renew;
