-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_look(
  IN p_prefix VARBINARY(255), IN p_client BINARY(16), IN p_window BIGINT,
  IN p_name VARBINARY(255), IN p_names BOOLEAN)
SQL SECURITY INVOKER
COMMENT 'Returns which requests of the client were granted and are not confirmed, and the head of one queue; with p_names also the names it waits for with an expired holder'
BEGIN
  DECLARE v_now DATETIME(6);
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
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ ONLY;
  SET v_now = UTC_TIMESTAMP(6);
  SELECT HEX(id) FROM dlock_requests FORCE INDEX (client)
    WHERE client = p_client AND state = 'granted' AND token > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', v_now) - 2 * p_window;
  SELECT head FROM dlock_locks WHERE prefix = p_prefix AND name = p_name;
  IF p_names THEN
    SELECT DISTINCT HEX(w.name)
      FROM (SELECT DISTINCT name FROM dlock_requests WHERE client = p_client AND state = 'waiting' AND prefix = p_prefix) w
      JOIN dlock_locks l ON l.prefix = p_prefix AND l.name = w.name
      JOIN dlock_requests h ON h.prefix = p_prefix AND h.name = w.name AND h.place < l.head AND h.expires_at <= v_now;
  END IF;
  COMMIT AND NO CHAIN NO RELEASE;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_look;
