CREATE PROCEDURE IF NOT EXISTS dlock_leave(IN p_rows INT, IN p_tables INT, IN p_safe INT, IN p_time DOUBLE)
SQL SECURITY INVOKER
COMMENT 'puts back what dlock_enter returned'
BEGIN
  IF p_rows > 2 OR p_tables > 2 OR p_safe THEN
    SET SESSION innodb_lock_wait_timeout = p_rows, SESSION lock_wait_timeout = p_tables, SESSION sql_safe_updates = p_safe & 1,
      SESSION sql_big_selects = p_safe < 2;
  END IF;
  IF p_time IS NOT NULL THEN
    SET SESSION timestamp = p_time;
  END IF;
END
