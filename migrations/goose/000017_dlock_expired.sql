-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_expired(IN p_prefix VARBINARY(255), IN p_client BINARY(16))
SQL SECURITY INVOKER
COMMENT 'Returns the names for which the client waits and where a holder has expired'
BEGIN
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
  SELECT DISTINCT HEX(w.name)
    FROM (SELECT DISTINCT name FROM dlock_requests WHERE client = p_client AND state = 'waiting' AND prefix = p_prefix) w
    JOIN dlock_locks l ON l.prefix = p_prefix AND l.name = w.name
    JOIN dlock_requests h ON h.prefix = p_prefix AND h.name = w.name AND h.place < l.head AND h.expires_at <= UTC_TIMESTAMP(6);
  COMMIT AND NO CHAIN NO RELEASE;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_expired;
