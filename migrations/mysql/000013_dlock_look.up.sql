CREATE PROCEDURE IF NOT EXISTS dlock_look(
  IN p_prefix VARBINARY(255), IN p_client BINARY(16), IN p_window BIGINT, IN p_name VARBINARY(255), IN p_place BIGINT, IN p_next BIGINT)
SQL SECURITY INVOKER
COMMENT 'Returns the head of one queue, and the id of whoever is ahead of the place there that still waits, p_place or p_next, if that is of another client and exclusive; then which requests of the client were granted and are not confirmed: id, token, µs left'
BEGIN
  DECLARE v_now DATETIME(6);
  DECLARE v_base, v_head, v_place BIGINT;
  DECLARE v_ahead BINARY(16);
  DECLARE v_rows, v_tables, v_safe INT; -- as they were in the session
  DECLARE v_time DOUBLE;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
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
  SET v_now = UTC_TIMESTAMP(6);
  -- first the head: whoever is below it is among those granted, or has been for long
  SELECT base, head INTO v_base, v_head FROM dlock_locks WHERE prefix = p_prefix AND name = p_name;
  SET v_place = IF(v_head > p_place, p_next, p_place);
  IF v_place > v_base THEN
    SELECT IF(client <> p_client AND mode = 'exclusive', id, NULL) INTO v_ahead FROM dlock_requests FORCE INDEX (PRIMARY)
      WHERE prefix = p_prefix AND name = p_name AND place < v_place AND place >= v_base
      ORDER BY place DESC LIMIT 1;
  END IF;
  SELECT v_head, v_place, HEX(v_ahead);
  -- the clock was read before the rows are: who trusts what is left from the time when it asked
  -- trusts it no longer than the server
  SELECT HEX(id), token, TIMESTAMPDIFF(MICROSECOND, v_now, expires_at) FROM dlock_requests FORCE INDEX (client)
    WHERE client = p_client AND state = 'granted' AND token > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', v_now) - 2 * p_window;
  COMMIT AND NO CHAIN NO RELEASE;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END
