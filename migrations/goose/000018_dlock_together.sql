-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_together(IN p_prefix VARBINARY(255), IN p_calls LONGTEXT CHARACTER SET ascii)
SQL SECURITY INVOKER
COMMENT 'p_calls: name,id,ttl,client,shared,permits,fixed,label; for each of different names, texts in hexadecimal; a ttl of 0 is a release. Does in one transaction the acquires whose name is free and the releases of a hold that is alone there, and leaves the others. Returns which it did: index:token, …'
BEGIN
  DECLARE v_now DATETIME(6);
  DECLARE v_last, v_place, v_there, v_ttl BIGINT;
  DECLARE v_k, v_cut INT DEFAULT 0;
  DECLARE v_name VARBINARY(255);
  DECLARE v_id BINARY(16);
  DECLARE v_call, v_rest, v_done LONGTEXT CHARACTER SET ascii DEFAULT X'';
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
  START TRANSACTION READ WRITE;
  SET v_rest = p_calls;
  WHILE LENGTH(v_rest) > 0 DO
    SET v_k = v_k + 1, v_call = SUBSTRING_INDEX(v_rest, ';', 1), v_rest = SUBSTRING(v_rest, LENGTH(v_call) + 2), v_last = NULL, v_there = NULL,
      v_name = UNHEX(SUBSTRING_INDEX(v_call, ',', 1)), v_id = UNHEX(SUBSTRING_INDEX(SUBSTRING_INDEX(v_call, ',', 2), ',', -1)),
      v_ttl = SUBSTRING_INDEX(SUBSTRING_INDEX(v_call, ',', 3), ',', -1);
    -- A name waits for no other: what somebody else has is left to a call of its own. Without joins
    -- and tombstones, and with base at the last place or above it, whoever is there stands at the
    -- last place.
    SELECT last_token, last_place INTO v_last, v_place FROM dlock_locks
      WHERE prefix = p_prefix AND name = v_name AND last_side = 0 AND base >= last_place FOR UPDATE SKIP LOCKED;
    SET v_now = UTC_TIMESTAMP(6);
    IF v_last IS NOT NULL AND v_ttl = 0 THEN
      SELECT place INTO v_there FROM dlock_requests
        WHERE prefix = p_prefix AND name = v_name AND place = v_place AND id = v_id AND state IN ('granted', 'holding') AND broken = FALSE AND expires_at > v_now
        FOR UPDATE SKIP LOCKED;
      IF v_there IS NOT NULL THEN
        DELETE FROM dlock_requests WHERE prefix = p_prefix AND name = v_name AND place = v_place;
        SET v_cut = v_cut + (ROW_COUNT() <> 1), v_done = CONCAT(v_done, v_k, ':0,');
      END IF;
    ELSEIF v_last IS NOT NULL THEN
      SELECT COUNT(*) INTO v_there FROM dlock_requests WHERE prefix = p_prefix AND name = v_name AND place = v_place;
      IF v_there = 0 THEN
        SET v_place = v_place + 1, v_last = GREATEST(v_last + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', v_now));
        INSERT INTO dlock_requests (prefix, name, place, id, owner, client, mode, permits, state, broken, fixed, token, ttl_us, expires_at, waits_until, arrived_at, label)
          VALUES (p_prefix, v_name, v_place, v_id, v_id, UNHEX(SUBSTRING_INDEX(SUBSTRING_INDEX(v_call, ',', 4), ',', -1)), IF(SUBSTRING_INDEX(SUBSTRING_INDEX(v_call, ',', 5), ',', -1) = '1', 'shared', 'exclusive'),
            SUBSTRING_INDEX(SUBSTRING_INDEX(v_call, ',', 6), ',', -1), 'holding', FALSE, SUBSTRING_INDEX(SUBSTRING_INDEX(v_call, ',', 7), ',', -1), v_last, v_ttl,
            v_now + INTERVAL v_ttl MICROSECOND, NULL, v_now, CONVERT(UNHEX(SUBSTRING_INDEX(v_call, ',', -1)) USING utf8mb4));
        UPDATE dlock_locks SET last_token = v_last, last_place = v_place, base = v_place, head = v_place + 1,
            used_at = IF(used_at > v_now - INTERVAL 1 MINUTE, used_at, v_now)
          WHERE prefix = p_prefix AND name = v_name;
        SET v_cut = v_cut + (ROW_COUNT() <> 1), v_done = CONCAT(v_done, v_k, ':', v_last, ',');
      END IF;
    END IF;
  END WHILE;
  IF v_cut THEN -- KILL QUERY may leave a statement undone, and let the procedure go on
    SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'a statement was cut short';
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_done;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_together;
