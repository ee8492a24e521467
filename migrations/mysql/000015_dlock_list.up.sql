CREATE PROCEDURE IF NOT EXISTS dlock_list(IN p_prefix VARBINARY(255))
SQL SECURITY INVOKER
COMMENT 'Returns the names that have requests'
BEGIN
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
  START TRANSACTION READ ONLY;
  SELECT DISTINCT HEX(name) FROM dlock_requests
    WHERE prefix = p_prefix AND state IN ('waiting', 'granted', 'holding') AND expires_at > UTC_TIMESTAMP(6);
  COMMIT AND NO CHAIN NO RELEASE;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END
