CREATE PROCEDURE IF NOT EXISTS dlock_settle(
  IN p_prefix VARBINARY(255), IN p_name VARBINARY(255), IN p_client BINARY(16), IN p_window BIGINT,
  INOUT io_token BIGINT, INOUT io_place BIGINT, INOUT io_side BIGINT, INOUT io_base BIGINT, INOUT io_head BIGINT, INOUT io_now DATETIME(6),
  OUT o_news LONGTEXT CHARACTER SET ascii)
SQL SECURITY INVOKER
COMMENT 'under the lock row: drops what has expired among the holders, and grants whoever is next; o_news: whom, as id:token:told, … of some. One transaction removes 500 of the dead, or grants 500, at most: it commits and begins anew'
BEGIN
  DECLARE v_most BIGINT DEFAULT 500; -- of the dead that one transaction removes, and of grants
  DECLARE v_granted BIGINT;
  -- CONCAT fails if it is longer than a packet may be, as that of two such lists must not; who is
  -- not in o_news finds its grant by a look
  DECLARE v_room BIGINT DEFAULT LEAST(@@max_allowed_packet, 65536) DIV 2 - 100;
  DECLARE v_full BOOLEAN;
  DECLARE v_expired, v_unconfirmed, v_owners, v_exclusive, v_permits, v_place, v_limit, v_ttl, v_shared, v_alive, v_told, v_seen, v_us BIGINT;
  DECLARE v_id, v_client BINARY(16);
  DECLARE v_end BOOLEAN DEFAULT FALSE;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_end = TRUE;
  SET o_news = X'';

  -- KILL QUERY may leave an UPDATE or a DELETE undone, or make a read with LIMIT find nothing, and
  -- let the procedure go on (MariaDB). So writes are checked, and so is that nothing was found.
  -- What is not checked removes those whose time is over, whom the next call finds again.
  REPEAT
    SET v_full = FALSE, v_granted = 0, v_end = FALSE, v_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', io_now);
    SELECT COALESCE(SUM(expires_at <= io_now), 0), SUM(expires_at <= io_now AND state = 'granted'),
        COUNT(DISTINCT IF(state IN ('granted', 'holding'), owner, NULL)),
        COALESCE(SUM(state IN ('granted', 'holding') AND mode = 'exclusive'), 0), MIN(IF(state IN ('granted', 'holding'), NULLIF(permits, 0), NULL))
      INTO v_expired, v_unconfirmed, v_owners, v_exclusive, v_permits FROM dlock_requests FORCE INDEX (PRIMARY)
      WHERE prefix = p_prefix AND name = p_name AND (place >= -io_side AND place < 0 OR place >= io_base AND place < io_head);
    IF v_unconfirmed > 0 THEN
      SET v_place = io_base - 1;
      dead: LOOP -- one after the other, each by its key
        SELECT place, client INTO v_place, v_client FROM dlock_requests
          WHERE prefix = p_prefix AND name = p_name AND place > v_place AND place < io_head AND state = 'granted' AND expires_at <= io_now
          ORDER BY place LIMIT 1;
        IF v_end THEN
          LEAVE dead;
        END IF;
        DELETE FROM dlock_requests WHERE prefix = p_prefix AND name = p_name AND place >= io_head AND client = v_client ORDER BY place LIMIT v_most;
        IF ROW_COUNT() = v_most THEN
          SET v_full = TRUE;
          LEAVE dead;
        END IF;
      END LOOP;
    END IF;
    -- with a limit, or it would lock the next row, of another name, to see that it is one
    IF v_expired > 0 AND NOT v_full THEN
      SET v_full = v_expired > v_most, v_expired = LEAST(v_expired, v_most);
      DELETE FROM dlock_requests
        WHERE prefix = p_prefix AND name = p_name AND (place >= -io_side AND place < 0 OR place >= io_base AND place < io_head) AND expires_at <= io_now
        ORDER BY place LIMIT v_expired;
      SET v_owners = NULL;
    END IF;

    SET v_end = FALSE;
    queue: WHILE NOT v_full DO
      -- who waits was last heard of 10 s before it expires
      SELECT place, id, client, mode = 'shared', permits, ttl_us, expires_at > io_now, NOT fixed AND expires_at >= io_now + INTERVAL 10000000 - p_window MICROSECOND
        INTO v_place, v_id, v_client, v_shared, v_limit, v_ttl, v_alive, v_seen FROM dlock_requests FORCE INDEX (PRIMARY)
        WHERE prefix = p_prefix AND name = p_name AND place >= io_head ORDER BY place LIMIT 1;
      IF v_end THEN
        SELECT COUNT(*) INTO v_place FROM (SELECT 1 FROM dlock_requests FORCE INDEX (PRIMARY)
          WHERE prefix = p_prefix AND name = p_name AND place >= io_head LIMIT 1) d;
        IF v_place = 0 THEN
          LEAVE queue;
        END IF;
        SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'a statement was cut short';
      END IF;
      IF NOT v_alive THEN -- the dead up to the first who lives go in one statement
        SELECT place INTO v_place FROM dlock_requests FORCE INDEX (PRIMARY)
          WHERE prefix = p_prefix AND name = p_name AND place > v_place AND expires_at > io_now ORDER BY place LIMIT 1;
        IF v_end THEN
          SELECT COUNT(*) INTO v_alive FROM dlock_requests FORCE INDEX (PRIMARY)
            WHERE prefix = p_prefix AND name = p_name AND place > v_place AND expires_at > io_now;
          IF v_alive > 0 THEN
            SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'a statement was cut short';
          END IF;
          SET v_place = ~0 >> 1, v_end = FALSE;
        END IF;
        SELECT COUNT(*) INTO v_expired FROM (SELECT 1 FROM dlock_requests FORCE INDEX (PRIMARY)
          WHERE prefix = p_prefix AND name = p_name AND place >= io_head AND place < v_place LIMIT v_most) d;
        DELETE FROM dlock_requests WHERE prefix = p_prefix AND name = p_name AND place >= io_head AND place < v_place ORDER BY place LIMIT v_expired;
        SET v_full = v_expired = v_most;
        ITERATE queue;
      END IF;
      IF v_owners IS NULL THEN
        SELECT COUNT(DISTINCT owner), COALESCE(SUM(mode = 'exclusive'), 0), MIN(NULLIF(permits, 0)) INTO v_owners, v_exclusive, v_permits
          FROM dlock_requests FORCE INDEX (PRIMARY)
          WHERE prefix = p_prefix AND name = p_name AND (place >= -io_side AND place < 0 OR place >= io_base AND place < io_head) AND state IN ('granted', 'holding');
      END IF;
      SET v_permits = IF(v_limit > 0, LEAST(v_limit, COALESCE(v_permits, v_limit)), v_permits);
      IF v_owners > 0 AND (v_exclusive > 0 OR v_shared = 0 OR v_owners >= v_permits) THEN
        LEAVE queue;
      END IF;
      SET io_token = GREATEST(io_token + 1, v_us), io_head = v_place + 1, v_told = v_client = p_client AND LENGTH(o_news) < v_room,
        v_owners = v_owners + 1, v_exclusive = v_exclusive + 1 - v_shared,
        o_news = IF(LENGTH(o_news) < v_room, CONCAT(o_news, HEX(v_id), ':', io_token, ':', v_told, ','), o_news), v_granted = v_granted + 1;
      UPDATE dlock_requests SET state = IF(v_told, 'holding', 'granted'), token = io_token, waits_until = NULL,
          expires_at = io_now + INTERVAL IF(v_told OR v_seen, ttl_us, LEAST(ttl_us, p_window)) MICROSECOND
        WHERE prefix = p_prefix AND name = p_name AND place = v_place;
      IF ROW_COUNT() <> 1 THEN
        SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'a statement was cut short';
      END IF;
      IF v_exclusive > 0 THEN
        LEAVE queue; -- nobody fits beside it
      END IF;
      SET v_full = v_granted = v_most;
    END WHILE;
    IF v_full THEN -- commit what is done, so that others of this name come between
      UPDATE dlock_locks SET last_token = io_token, last_side = io_side, head = io_head WHERE prefix = p_prefix AND name = p_name;
      SELECT COUNT(*) INTO v_place FROM dlock_locks
        WHERE prefix = p_prefix AND name = p_name AND last_token = io_token AND last_side = io_side AND head = io_head;
      IF v_place <> 1 THEN
        SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317, MESSAGE_TEXT = 'a statement was cut short';
      END IF;
      COMMIT AND NO CHAIN NO RELEASE;
      CALL dlock_begin(p_prefix, p_name, TRUE, io_token, io_place, io_side, io_base, io_head, io_now);
    END IF;
  UNTIL NOT v_full END REPEAT;
END
