CREATE PROCEDURE IF NOT EXISTS dlock_list(IN p_prefix VARBINARY(255))
SQL SECURITY INVOKER
COMMENT 'Returns the names that have requests, and how many there are'
BEGIN
  DECLARE v_now DATETIME(6);
  DECLARE v_n INT;
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
  SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
  START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY;
  SET v_now = UTC_TIMESTAMP(6);
  -- KILL QUERY may cut the list short: it is counted, too
  SELECT COUNT(DISTINCT name) INTO v_n FROM dlock_requests
    WHERE prefix = p_prefix AND state IN ('waiting', 'granted', 'holding') AND expires_at > v_now;
  SELECT DISTINCT HEX(name) FROM dlock_requests
    WHERE prefix = p_prefix AND state IN ('waiting', 'granted', 'holding') AND expires_at > v_now;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_n;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END
