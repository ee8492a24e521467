CREATE PROCEDURE IF NOT EXISTS dlock_begin(
  IN p_prefix VARBINARY(255), IN p_name VARBINARY(255), IN p_create BOOLEAN,
  OUT o_token BIGINT, OUT o_place BIGINT, OUT o_side BIGINT, OUT o_base BIGINT, OUT o_head BIGINT, OUT o_now DATETIME(6))
SQL SECURITY INVOKER
COMMENT 'begins a transaction that holds the lock row of a name; o_token is NULL if there is none. o_now is the time after that'
BEGIN
  DECLARE v_n, v_token, v_place, v_side, v_base, v_head BIGINT;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  ROLLBACK AND NO CHAIN NO RELEASE;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ WRITE;
  SELECT last_token, last_place, last_side, base, head INTO o_token, o_place, o_side, o_base, o_head
    FROM dlock_locks WHERE prefix = p_prefix AND name = p_name FOR UPDATE;
  IF o_token IS NULL AND p_create THEN
    INSERT INTO dlock_locks (prefix, name, last_token, last_place, last_side, base, head, used_at)
      VALUES (p_prefix, p_name, 0, 0, 0, 1, 1, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE used_at = VALUES(used_at);
    SELECT last_token, last_place, last_side, base, head INTO o_token, o_place, o_side, o_base, o_head
      FROM dlock_locks WHERE prefix = p_prefix AND name = p_name FOR UPDATE;
    IF o_token = 0 THEN -- it is made from the requests that stand, if any do
      SELECT COUNT(*), MAX(token), GREATEST(MAX(place), 0), -LEAST(MIN(place), 0), MIN(IF(place > 0, place, NULL)), MIN(IF(state = 'waiting', place, NULL))
        INTO v_n, v_token, v_place, v_side, v_base, v_head FROM dlock_requests WHERE prefix = p_prefix AND name = p_name;
      IF v_n > 0 THEN
        SET v_base = COALESCE(v_base, 1), v_head = COALESCE(v_head, v_place + 1), v_n = (v_token, v_place, v_side, v_base, v_head) <> (o_token, o_place, o_side, o_base, o_head),
          o_token = v_token, o_place = v_place, o_side = v_side, o_base = v_base, o_head = v_head;
        UPDATE dlock_locks SET last_token = o_token, last_place = o_place, last_side = o_side, base = o_base, head = o_head WHERE prefix = p_prefix AND name = p_name;
        IF v_n AND ROW_COUNT() <> 1 THEN -- KILL QUERY may leave a statement undone, and let the procedure go on
          SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'a statement was cut short';
        END IF;
      END IF;
    END IF;
  END IF;
  SET o_now = UTC_TIMESTAMP(6);
END
