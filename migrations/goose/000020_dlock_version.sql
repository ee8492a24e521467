-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_version()
SQL SECURITY INVOKER
COMMENT 'Returns the number of the last migration, which is this one; and how many bytes a statement may have'
BEGIN
  SELECT 20;
  SELECT @@max_allowed_packet;
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_version;
