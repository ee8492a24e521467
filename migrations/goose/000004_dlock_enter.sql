-- +goose Up
-- +goose StatementBegin
CREATE PROCEDURE IF NOT EXISTS dlock_enter(OUT o_rows INT, OUT o_tables INT, OUT o_safe INT, OUT o_time DOUBLE)
SQL SECURITY INVOKER
COMMENT 'makes the session fit for what follows: no wait of it is long, its clock runs, and it refuses no statement for its size. Returns what dlock_leave is to put back'
BEGIN
  SET o_rows = @@innodb_lock_wait_timeout, o_tables = @@lock_wait_timeout, o_safe = @@sql_safe_updates + 2 * (1 - @@sql_big_selects), o_time = @@timestamp;
  IF o_rows > 2 OR o_tables > 2 OR o_safe THEN
    SET SESSION innodb_lock_wait_timeout = LEAST(o_rows, 2), SESSION lock_wait_timeout = LEAST(o_tables, 2), SESSION sql_safe_updates = FALSE,
      SESSION sql_big_selects = TRUE;
  END IF;
  IF o_time = @@timestamp THEN -- two statements of one microsecond, or a clock that stands still
    DO SLEEP(0.00001);
  END IF;
  IF o_time = @@timestamp THEN
    SET SESSION timestamp = DEFAULT;
  ELSE
    SET o_time = NULL;
  END IF;
END;
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS dlock_enter;
