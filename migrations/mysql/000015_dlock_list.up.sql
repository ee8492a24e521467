CREATE PROCEDURE IF NOT EXISTS dlock_list(IN p_prefix VARBINARY(255), IN p_after VARBINARY(255), IN p_most INT)
SQL SECURITY INVOKER
COMMENT 'Returns the first p_most names after that one that have requests, in order, and how many that are'
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
  SELECT COUNT(*) INTO v_n FROM (SELECT DISTINCT name FROM dlock_requests FORCE INDEX (PRIMARY)
    WHERE prefix = p_prefix AND name > p_after AND state IN ('waiting', 'granted', 'holding') AND expires_at > v_now ORDER BY name LIMIT p_most) d;
  SELECT HEX(d.name) FROM (SELECT DISTINCT name FROM dlock_requests FORCE INDEX (PRIMARY)
    WHERE prefix = p_prefix AND name > p_after AND state IN ('waiting', 'granted', 'holding') AND expires_at > v_now ORDER BY name LIMIT p_most) d
    ORDER BY d.name;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_n;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END
