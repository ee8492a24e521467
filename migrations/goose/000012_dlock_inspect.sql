-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_inspect(
  IN p_prefix VARBINARY(255), IN p_name VARBINARY(255), IN p_client BINARY(16), IN p_window BIGINT, IN p_after BIGINT, IN p_most INT)
SQL SECURITY INVOKER
COMMENT 'Returns the first p_most requests after that place, holders first, in order of arrival, and then whom it granted, and how many requests that are. It grants only if p_after is NULL: the list begins'
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
  IF p_after IS NULL THEN
    SET p_after = -4611686018427387904;
    CALL dlock_begin(p_prefix, p_name, FALSE, v_last, v_place, v_side, v_base, v_head, v_now);
  ELSE
    ROLLBACK AND NO CHAIN NO RELEASE; -- what somebody left open in this session
  END IF;
  IF v_last IS NOT NULL THEN
    CALL dlock_settle(p_prefix, p_name, p_client, p_window, v_last, v_place, v_side, v_base, v_head, v_now, v_news);
    IF LENGTH(v_news) > 0 THEN
      UPDATE dlock_locks SET last_token = v_last, head = v_head WHERE prefix = p_prefix AND name = p_name;
      IF ROW_COUNT() <> 1 THEN -- unless dlock_settle wrote it
        SELECT COUNT(*) = 0 INTO v_cut FROM dlock_locks WHERE prefix = p_prefix AND name = p_name AND last_token = v_last AND head = v_head;
      END IF;
      IF v_cut THEN -- KILL QUERY may leave a statement undone, and let the procedure go on
        SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'a statement was cut short';
      END IF;
    END IF;
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  -- KILL QUERY may cut the list short: it is counted, too
  SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
  START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY;
  SET v_now = COALESCE(v_now, UTC_TIMESTAMP(6));
  SELECT COUNT(*) INTO v_n FROM (SELECT 1 FROM dlock_requests FORCE INDEX (PRIMARY)
    WHERE prefix = p_prefix AND name = p_name AND place > p_after AND state IN ('waiting', 'granted', 'holding') AND expires_at > v_now
    ORDER BY place LIMIT p_most) d;
  SELECT HEX(id), HEX(owner), HEX(client), mode = 'shared', permits, token, ttl_us, fixed, broken,
      TIMESTAMPDIFF(MICROSECOND, v_now, expires_at), TIMESTAMPDIFF(MICROSECOND, arrived_at, v_now), HEX(label), place
    FROM dlock_requests FORCE INDEX (PRIMARY)
    WHERE prefix = p_prefix AND name = p_name AND place > p_after AND state IN ('waiting', 'granted', 'holding') AND expires_at > v_now
    ORDER BY place LIMIT p_most;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_news, v_n;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_inspect;
