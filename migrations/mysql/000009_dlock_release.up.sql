CREATE PROCEDURE IF NOT EXISTS dlock_release(
  IN p_prefix VARBINARY(255), IN p_name VARBINARY(255), IN p_id BINARY(16), IN p_client BINARY(16), IN p_tombstone BIGINT, IN p_window BIGINT)
SQL SECURITY INVOKER
COMMENT 'p_tombstone: for how long (µs) copies of its acquire create nothing, or 0. Returns 1 it was there, 0 it was not, -1 it was ended by an operator; and the head of the queue'
BEGIN
  DECLARE v_now DATETIME(6);
  DECLARE v_last, v_place, v_side, v_base, v_head BIGINT; -- as in the lock row
  DECLARE v_mine, v_others, v_ttl BIGINT;
  DECLARE v_state, v_alive, v_broken, v_result, v_cut INT DEFAULT 0;
  DECLARE v_news LONGTEXT CHARACTER SET ascii DEFAULT X'';
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
  CALL dlock_begin(p_prefix, p_name, p_tombstone > 0, v_last, v_place, v_side, v_base, v_head, v_now);

  IF v_last IS NOT NULL THEN
    SELECT place, state + 0, expires_at > v_now, broken, ttl_us INTO v_mine, v_state, v_alive, v_broken, v_ttl FROM dlock_requests
      WHERE id = p_id AND prefix = p_prefix AND name = p_name;
    SET v_result = IF(v_state = 5, -1, v_state IN (1, 2, 3) AND v_alive);
    IF v_result = 1 THEN
      DELETE FROM dlock_requests WHERE prefix = p_prefix AND name = p_name AND place = v_mine;
      SET v_cut = ROW_COUNT() <> 1;
      IF v_broken THEN -- a copy of this call has to say the same
        SET v_result = -1, p_tombstone = GREATEST(p_tombstone, v_ttl);
      END IF;
    END IF;
    SELECT COUNT(*) INTO v_others FROM (SELECT 1 FROM dlock_requests FORCE INDEX (PRIMARY)
      WHERE prefix = p_prefix AND name = p_name AND (place >= -v_side AND place < 0 OR place >= v_base) LIMIT 1) d;
    IF v_others IS NULL OR v_others > 0 THEN
      CALL dlock_settle(p_prefix, p_name, p_client, p_window, v_last, v_place, v_side, v_base, v_head, v_now, v_news);
    END IF;
    IF p_tombstone > 0 THEN
      DELETE FROM dlock_requests WHERE id = p_id AND prefix = p_prefix AND name = p_name;
      SET v_side = v_side + 1;
      INSERT INTO dlock_requests (prefix, name, place, id, owner, client, mode, permits, state, broken, fixed, token, ttl_us, expires_at, arrived_at, label)
        VALUES (p_prefix, p_name, -v_side, p_id, p_id, p_client, 'exclusive', 0, IF(v_result < 0, 'ended', 'released'), TRUE, FALSE, 0,
          p_tombstone, v_now + INTERVAL p_tombstone MICROSECOND, v_now, X'');
    END IF;
    IF p_tombstone > 0 OR LENGTH(v_news) > 0 THEN
      UPDATE dlock_locks SET last_token = v_last, last_side = v_side, head = v_head WHERE prefix = p_prefix AND name = p_name;
      IF ROW_COUNT() <> 1 THEN -- unless dlock_settle wrote it
        SELECT v_cut OR COUNT(*) = 0 INTO v_cut FROM dlock_locks
          WHERE prefix = p_prefix AND name = p_name AND last_token = v_last AND last_side = v_side AND head = v_head;
      END IF;
    END IF;
  END IF;
  IF v_cut THEN -- KILL QUERY may leave a statement undone, and let the procedure go on
    SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'a statement was cut short';
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_result, v_head, v_news;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END
