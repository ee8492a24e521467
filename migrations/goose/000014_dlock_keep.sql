-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_keep(IN p_client BINARY(16))
SQL SECURITY INVOKER
COMMENT 'Keeps alive all that the client has waiting, and returns how much that is; and removes some of those who waited, under any name, and died'
BEGIN
  DECLARE v_n INT;
  DECLARE v_until DATETIME(6);
  DECLARE v_id BINARY(16);
  DECLARE v_end BOOLEAN DEFAULT FALSE;
  DECLARE v_rows, v_tables, v_safe INT; -- as they were in the session
  DECLARE v_time DOUBLE;
  DECLARE dead CURSOR FOR SELECT id FROM dlock_requests FORCE INDEX (waits_until)
    WHERE waits_until <= UTC_TIMESTAMP(6) LIMIT 100 FOR UPDATE SKIP LOCKED;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_end = TRUE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
    RESIGNAL;
  END;
  CALL dlock_enter(v_rows, v_tables, v_safe, v_time);
  ROLLBACK AND NO CHAIN NO RELEASE;
  SET v_until = UTC_TIMESTAMP(6) + INTERVAL 10 SECOND;
  REPEAT -- in transactions of 5000, and each request once
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION READ WRITE;
    UPDATE dlock_requests SET expires_at = v_until, waits_until = v_until
      WHERE client = p_client AND state = 'waiting' AND waits_until < v_until LIMIT 5000;
    SET v_n = ROW_COUNT();
    COMMIT AND NO CHAIN NO RELEASE;
  UNTIL v_n < 5000 END REPEAT;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ WRITE;
  -- not what was written, which leaves out what has the same time already
  SELECT COUNT(*) INTO v_n FROM dlock_requests WHERE client = p_client AND state = 'waiting';
  OPEN dead;
  bodies: LOOP -- needs no lock row: who finds one of them takes it for gone
    FETCH dead INTO v_id;
    IF v_end THEN
      LEAVE bodies;
    END IF;
    DELETE FROM dlock_requests WHERE id = v_id;
  END LOOP;
  CLOSE dead;
  COMMIT AND NO CHAIN NO RELEASE;
  SELECT v_n;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_keep;
