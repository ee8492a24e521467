-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_acquire(
  IN p_prefix VARBINARY(255), IN p_name VARBINARY(255), IN p_id BINARY(16), IN p_owner BINARY(16), IN p_client BINARY(16),
  IN p_shared BOOLEAN, IN p_permits INT, IN p_ttl BIGINT, IN p_fixed BOOLEAN, IN p_wait INT, IN p_window BIGINT,
  IN p_label VARCHAR(255) CHARACTER SET utf8mb4)
SQL SECURITY INVOKER
COMMENT 'p_wait: 1 wait, 0 do not, -1 only resume what holds. Returns: granted, arrived (to wait), waiting (as before), held, lost, upgrade, conflict; and of who arrived to wait, whom it waits behind, if that is of another client and exclusive'
BEGIN
  DECLARE v_now DATETIME(6);
  DECLARE v_last, v_place, v_side, v_base, v_head BIGINT; -- as in the lock row
  DECLARE v_there, v_mine, v_token, v_owners, v_exclusive, v_permits, v_semaphore, v_owned, v_covered, v_limit, v_broken, v_hint BIGINT;
  DECLARE v_ahead BINARY(16);
  DECLARE v_state, v_changes, v_inserted, v_cut INT DEFAULT 0;
  DECLARE v_result VARCHAR(10) CHARACTER SET ascii;
  DECLARE v_others, v_news LONGTEXT CHARACTER SET ascii DEFAULT X'';
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
  CALL dlock_begin(p_prefix, p_name, TRUE, v_last, v_place, v_side, v_base, v_head, v_now);

  SELECT COUNT(*) INTO v_there FROM (SELECT 1 FROM dlock_requests FORCE INDEX (PRIMARY)
    WHERE prefix = p_prefix AND name = p_name AND (place >= -v_side AND place < 0 OR place >= v_base) LIMIT 1) d;
  IF v_there = 0 THEN -- nobody is there, which is most often so
    SET v_result = IF(p_wait < 0 OR p_owner <> p_id, 'lost', 'new'), v_base = v_place + 1, v_side = 0;
  ELSE
    CALL dlock_settle(p_prefix, p_name, p_client, p_window, v_last, v_place, v_side, v_base, v_head, v_now, v_news);
    SELECT place, state + 0, broken, token, state <> 'holding' OR ttl_us <> p_ttl OR expires_at <> v_now + INTERVAL p_ttl MICROSECOND
      INTO v_mine, v_state, v_broken, v_token, v_changes FROM dlock_requests
      WHERE id = p_id AND prefix = p_prefix AND name = p_name;
    IF v_state IN (2, 3) AND NOT v_broken THEN -- it holds
      UPDATE dlock_requests SET state = 'holding', ttl_us = p_ttl, expires_at = v_now + INTERVAL p_ttl MICROSECOND
        WHERE prefix = p_prefix AND name = p_name AND place = v_mine;
      SET v_cut = v_changes AND ROW_COUNT() <> 1, v_result = 'granted';
    ELSEIF v_state > 1 OR p_wait < 0 THEN
      SET v_result = 'lost';
    ELSE
      SELECT COUNT(DISTINCT owner), COALESCE(SUM(mode = 'exclusive'), 0), MIN(NULLIF(permits, 0)), COALESCE(MAX(mode = 'shared' AND permits > 0), 0),
          COALESCE(SUM(owner = p_owner), 0), MAX(owner = p_owner AND (mode = 'exclusive' OR p_shared)), MAX(owner = p_owner AND broken),
          MAX(IF(owner = p_owner, token, 0)), COALESCE(MIN(IF(owner = p_owner, NULLIF(permits, 0), NULL)), 0),
          COALESCE(MIN(IF(place > 0, place, NULL)), v_head), GREATEST(0, TIMESTAMPDIFF(MICROSECOND, v_now, MIN(expires_at)))
        INTO v_owners, v_exclusive, v_permits, v_semaphore, v_owned, v_covered, v_broken, v_token, v_limit, v_base, v_hint
        FROM dlock_requests FORCE INDEX (PRIMARY)
        WHERE prefix = p_prefix AND name = p_name AND (place >= -v_side AND place < 0 OR place >= v_base AND place < v_head) AND state IN ('granted', 'holding');
      IF p_owner <> p_id THEN
        SET v_result = IF(v_owned = 0 OR v_broken, 'lost', IF(v_semaphore <> (p_shared AND p_permits > 0), 'conflict', IF(v_covered, 'join', 'upgrade')));
      ELSEIF v_owned > 0 THEN
        SET v_result = 'lost'; -- it expired, and joins of its hold go on
      ELSEIF v_state = 1 AND p_wait THEN
        SET v_result = 'waiting';
      ELSEIF v_state = 1 THEN
        DELETE FROM dlock_requests WHERE prefix = p_prefix AND name = p_name AND place = v_mine;
        SET v_cut = ROW_COUNT() <> 1;
        CALL dlock_settle(p_prefix, p_name, p_client, p_window, v_last, v_place, v_side, v_base, v_head, v_now, v_others);
        SET v_news = CONCAT(v_news, v_others), v_result = 'held';
      ELSEIF v_owners > 0 AND v_semaphore <> (p_shared AND p_permits > 0) THEN
        SET v_result = 'conflict';
      ELSE
        SET v_there = NULL, v_permits = IF(p_permits > 0, LEAST(p_permits, COALESCE(v_permits, p_permits)), v_permits);
        SELECT COUNT(*) INTO v_there FROM (SELECT 1 FROM dlock_requests FORCE INDEX (PRIMARY)
          WHERE prefix = p_prefix AND name = p_name AND place >= v_head LIMIT 1) d;
        SET v_result = IF(v_there = 0 AND (v_owners = 0 OR p_shared AND v_exclusive = 0 AND v_owners < COALESCE(v_permits, v_owners + 1)), 'new',
          IF(p_wait, 'arrived', 'held'));
      END IF;
    END IF;
  END IF;

  IF v_result IN ('new', 'join', 'arrived') THEN
    IF v_result = 'join' THEN
      SET v_side = v_side + 1;
    ELSE
      SET v_place = v_place + 1, v_token = 0, v_limit = p_permits;
    END IF;
    IF v_result = 'arrived' THEN
      SELECT IF(client <> p_client AND mode = 'exclusive', id, NULL) INTO v_ahead FROM dlock_requests FORCE INDEX (PRIMARY)
        WHERE prefix = p_prefix AND name = p_name AND place < v_place AND place >= v_base ORDER BY place DESC LIMIT 1;
    END IF;
    IF v_result = 'new' THEN
      SET v_last = GREATEST(v_last + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', v_now)), v_token = v_last, v_head = v_place + 1;
    END IF;
    INSERT INTO dlock_requests (prefix, name, place, id, owner, client, mode, permits, state, broken, fixed, token, ttl_us, expires_at, waits_until, arrived_at, label)
      VALUES (p_prefix, p_name, IF(v_result = 'join', -v_side, v_place), p_id, p_owner, p_client, IF(p_shared, 'shared', 'exclusive'), v_limit,
        IF(v_result = 'arrived', 'waiting', 'holding'), FALSE, p_fixed, v_token, p_ttl,
        v_now + INTERVAL IF(v_result = 'arrived', 10000000, p_ttl) MICROSECOND, IF(v_result = 'arrived', v_now + INTERVAL 10 SECOND, NULL), v_now, p_label);
    SET v_inserted = 1, v_result = IF(v_result = 'arrived', 'arrived', 'granted');
  END IF;
  IF v_inserted OR LENGTH(v_news) > 0 THEN
    UPDATE dlock_locks SET last_token = v_last, last_place = v_place, last_side = v_side, base = v_base, head = v_head,
        -- once a minute, so that its index has little to do
        used_at = IF(used_at > v_now - INTERVAL 1 MINUTE, used_at, v_now)
      WHERE prefix = p_prefix AND name = p_name;
    IF ROW_COUNT() <> 1 THEN -- unless dlock_settle wrote it
      SELECT v_cut OR COUNT(*) = 0 INTO v_cut FROM dlock_locks WHERE prefix = p_prefix AND name = p_name
        AND last_token = v_last AND last_place = v_place AND last_side = v_side AND base = v_base AND head = v_head;
    END IF;
  END IF;
  IF v_cut THEN -- KILL QUERY may leave a statement undone, and let the procedure go on
    SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'a statement was cut short';
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_result, v_token, v_hint, IF(v_mine > 0, v_mine, v_place), v_head, v_news, HEX(v_ahead);
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_acquire;
