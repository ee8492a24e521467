-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_list(IN p_prefix VARBINARY(255))
SQL SECURITY INVOKER
COMMENT 'Returns the names that have requests'
BEGIN
  ROLLBACK AND NO CHAIN NO RELEASE;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ ONLY;
  SELECT DISTINCT HEX(name) FROM dlock_requests
    WHERE prefix = p_prefix AND state IN ('waiting', 'granted', 'holding') AND expires_at > UTC_TIMESTAMP(6);
  COMMIT AND NO CHAIN NO RELEASE;
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_list;
