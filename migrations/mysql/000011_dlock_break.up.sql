CREATE PROCEDURE IF NOT EXISTS dlock_break(
  IN p_prefix VARBINARY(255), IN p_name VARBINARY(255), IN p_token BIGINT, IN p_force BOOLEAN, IN p_client BINARY(16), IN p_window BIGINT)
SQL SECURITY INVOKER
COMMENT 'Returns how many requests the hold with that token had'
BEGIN
  DECLARE v_now DATETIME(6);
  DECLARE v_last, v_place, v_side, v_base, v_head BIGINT; -- as in the lock row
  DECLARE v_n, v_cut INT DEFAULT 0;
  DECLARE v_news LONGTEXT CHARACTER SET ascii DEFAULT X'';
  DECLARE v_rows, v_tables, v_safe INT; -- as they were in the session
  DECLARE v_time DOUBLE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
    RESIGNAL;
  END;
  CALL dlock_enter(v_rows, v_tables, v_safe, v_time);
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
    SELECT COUNT(*) INTO v_cut FROM dlock_requests
      WHERE prefix = p_prefix AND name = p_name AND token = p_token AND state IN ('granted', 'holding') AND expires_at > v_now AND (p_force OR broken = FALSE);
    CALL dlock_settle(p_prefix, p_name, p_client, p_window, v_last, v_place, v_side, v_base, v_head, v_now, v_news);
    IF p_force OR LENGTH(v_news) > 0 THEN
      UPDATE dlock_locks SET last_token = v_last, last_side = v_side, head = v_head WHERE prefix = p_prefix AND name = p_name;
      IF ROW_COUNT() <> 1 THEN -- unless dlock_settle wrote it
        SELECT v_cut OR COUNT(*) = 0 INTO v_cut FROM dlock_locks
          WHERE prefix = p_prefix AND name = p_name AND last_token = v_last AND last_side = v_side AND head = v_head;
      END IF;
    END IF;
    IF v_cut THEN -- KILL QUERY may leave a statement undone, and let the procedure go on
      SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'a statement was cut short';
    END IF;
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_n, v_news;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END
