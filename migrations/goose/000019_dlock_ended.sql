-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_ended(IN p_client BINARY(16), IN p_within BIGINT)
SQL SECURITY INVOKER
COMMENT 'Returns which requests of the client were ended by an operator in the last p_within µs'
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
  -- who ended it gave it a TTL from then on
  SELECT HEX(id) FROM dlock_requests FORCE INDEX (client)
    WHERE client = p_client AND state = 'ended' AND expires_at > v_now + INTERVAL ttl_us - p_within MICROSECOND;
  COMMIT AND NO CHAIN NO RELEASE;
  CALL dlock_leave(v_rows, v_tables, v_safe, v_time);
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_ended;
