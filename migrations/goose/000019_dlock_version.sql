-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_version()
SQL SECURITY INVOKER
COMMENT 'Returns the number of the last migration, which is this one'
SELECT 19;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_version;
