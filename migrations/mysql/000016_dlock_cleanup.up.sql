CREATE PROCEDURE IF NOT EXISTS dlock_cleanup(IN p_unused BIGINT, IN p_most INT)
SQL SECURITY INVOKER
COMMENT 'Removes the rows of at most so many names that nobody uses, and whose last token is older (µs). Returns of how many'
BEGIN
  DECLARE v_now DATETIME(6);
  DECLARE v_last, v_place, v_side, v_base, v_head BIGINT; -- as in the lock row
  DECLARE v_prefix, v_name VARBINARY(255);
  DECLARE v_end BOOLEAN DEFAULT FALSE;
  DECLARE v_stand, v_n INT DEFAULT 0;
  DECLARE v_rows, v_tables, v_safe INT; -- as they were in the session
  DECLARE v_time DOUBLE;
  DECLARE v_oldest BIGINT; -- a token that was given out so long ago
  DECLARE unused CURSOR FOR SELECT prefix, name FROM dlock_locks l FORCE INDEX (used_at)
    WHERE used_at <= UTC_TIMESTAMP(6) - INTERVAL p_unused MICROSECOND AND last_token <= v_oldest AND NOT EXISTS (
      SELECT 1 FROM dlock_requests r WHERE r.prefix = l.prefix AND r.name = l.name AND r.expires_at > UTC_TIMESTAMP(6)) LIMIT p_most;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_end = TRUE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
    RESIGNAL;
  END;
  CALL dlock_enter(v_rows, v_tables, v_safe, v_time);
  SET v_oldest = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - p_unused;
  ROLLBACK AND NO CHAIN NO RELEASE;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ ONLY;
  OPEN unused;
  names: LOOP
    FETCH unused INTO v_prefix, v_name;
    IF v_end THEN
      LEAVE names;
    END IF;
    CALL dlock_begin(v_prefix, v_name, FALSE, v_last, v_place, v_side, v_base, v_head, v_now);
    -- not EXISTS, which is false in a statement that KILL QUERY cuts short
    SELECT COUNT(*) INTO v_stand FROM dlock_requests WHERE prefix = v_prefix AND name = v_name AND expires_at > v_now;
    IF v_last <= v_oldest AND v_stand = 0 THEN
      DELETE FROM dlock_requests WHERE prefix = v_prefix AND name = v_name AND expires_at <= v_now;
      SELECT COUNT(*) INTO v_stand FROM dlock_requests WHERE prefix = v_prefix AND name = v_name;
      IF v_stand = 0 THEN -- none was renewed meanwhile
        DELETE FROM dlock_locks WHERE prefix = v_prefix AND name = v_name;
        SET v_n = v_n + 1;
      END IF;
    END IF;
    COMMIT AND NO CHAIN NO RELEASE;
  END LOOP;
  CLOSE unused;
  ROLLBACK AND NO CHAIN NO RELEASE;
  SELECT v_n;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END
