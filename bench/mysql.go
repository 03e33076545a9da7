package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql" // the documented driver

	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/mysql"
)

// MySQL and MariaDB, through go-sql-driver/mysql.
var (
	MySQL   = newMySQL("mysql", "MySQL")
	MariaDB = newMySQL("mariadb", "MariaDB")
)

func newMySQL(name, title string) *Engine {
	return &Engine{
		Name: name, Title: title, Dialect: mysql.Dialect{},
		Open: func(dsn string, conns int) (*sql.DB, error) {
			cfg, err := mysqldriver.ParseDSN(dsn)
			if err != nil {
				return nil, err
			}
			// Or it would tell standard error of lost connections, amid the figures.
			cfg.Logger = &mysqldriver.NopLogger{}
			connector, err := mysqldriver.NewConnector(cfg)
			if err != nil {
				return nil, err
			}
			db := sql.OpenDB(connector)
			db.SetMaxOpenConns(conns)
			db.SetMaxIdleConns(conns)
			return db, nil
		},
		settle: settleMySQL,
		hold: map[string]func(context.Context, *sql.Conn) error{
			"snapshot": statements("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
				"START TRANSACTION WITH CONSISTENT SNAPSHOT"),
			// One that has also read something: in MySQL, writing alone keeps nothing from
			// being purged.
			"writer": statements("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
				"CREATE TEMPORARY TABLE idle_writer (x integer)", "START TRANSACTION",
				"INSERT INTO idle_writer VALUES (1)", "SELECT x FROM idle_writer"),
		},
		// The server does not count rows, but the transactions that left them.
		deadRows: func(ctx context.Context, db *sql.DB, _ string) (int64, error) {
			return historyLength(ctx, db)
		},
		serverTime: func(ctx context.Context, db *sql.DB) (time.Duration, bool) {
			var on bool
			var ns int64
			err := db.QueryRowContext(ctx, `SELECT @@performance_schema, COALESCE(SUM(sum_timer_wait), 0) DIV 1000
FROM performance_schema.events_statements_summary_by_digest
WHERE schema_name = DATABASE() AND digest_text NOT LIKE '%performance_schema%'`).Scan(&on, &ns)
			return time.Duration(ns), on && err == nil
		},
		bare: bareMySQL,
	}
}

// bareMySQL claims with two prepared statements and acks with one, each a
// transaction of its own at READ COMMITTED.
func bareMySQL(ctx context.Context, b *bareLoop) error {
	lease, err := pick(b.claim, "UPDATE", 6) // lane, from, limit, lease, token, node
	if err != nil {
		return err
	}
	take, err := pick(b.claim, "SELECT", 4) // lane, from, token, limit
	if err != nil {
		return err
	}
	ack, err := pick(b.ack, "DELETE", 3) // keys, lane, token
	if err != nil {
		return err
	}
	for range b.loop.Consumers {
		conn, err := b.db.Conn(ctx)
		if err != nil {
			return err
		}
		b.conns = append(b.conns, conn)
		if err := statements("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")(ctx, conn); err != nil {
			return err
		}
		var stmts [3]*sql.Stmt
		for i, r := range []recorded{lease, take, ack} {
			if stmts[i], err = conn.PrepareContext(ctx, r.text); err != nil {
				return err
			}
		}
		first := len(b.cycles)
		b.cycles = append(b.cycles, func(ctx context.Context, n int) (int, error) {
			token := newToken()
			for k := range b.lanes {
				lane := b.lanes[(first+k)%len(b.lanes)]
				from := lane.cursor.Load() & (1<<dialect.SeqBits - 1)
				result, err := stmts[0].ExecContext(ctx, lane.lane, from, n, lease.args[3], token, lease.args[5])
				if err != nil {
					return 0, err
				}
				got, err := result.RowsAffected()
				if err != nil {
					return 0, err
				}
				if got == 0 {
					continue
				}
				ids, err := takeMySQL(ctx, stmts[1], lane.lane, from, token, got)
				if err != nil {
					return 0, err
				}
				atomicMax(&lane.cursor, ids[len(ids)-1]+1)
				keys := []byte{'['}
				for i, id := range ids {
					if i > 0 {
						keys = append(keys, ',')
					}
					keys = append(strconv.AppendInt(append(keys, "[0,"...), id, 10), ']')
				}
				result, err = stmts[2].ExecContext(ctx, string(append(keys, ']')), lane.lane, token)
				if err != nil {
					return 0, err
				}
				gone, err := result.RowsAffected()
				if err == nil && gone != got {
					err = fmt.Errorf("bench: %d jobs acked of %d", gone, got)
				}
				return int(got), err
			}
			b.rewind()
			return 0, nil
		})
	}
	return nil
}

func takeMySQL(ctx context.Context, take *sql.Stmt, args ...any) (ids []int64, err error) {
	rows, err := take.QueryContext(ctx, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var lane, born, id, runAt, createdAt, leasedUntil, attempt, maxAttempts int64
		var kind, uniqueKey, headers, errs string
		var payload []byte
		if err := rows.Scan(&lane, &born, &id, &runAt, &createdAt, &leasedUntil, &attempt, &maxAttempts,
			&kind, &uniqueKey, &headers, &errs, &payload); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, errors.New("bench: a job that was claimed is not found")
	}
	return ids, nil
}

// settleMySQL waits until no more is purged, writes the table's changed pages,
// and counts its rows anew.
func settleMySQL(ctx context.Context, db *sql.DB, table string) error {
	const (
		few  = 1000            // which the server may leave for later
		rest = 2 * time.Second // without a change: the others are held
	)
	left, err := historyLength(ctx, db)
	for since := time.Now(); err == nil && left > few && time.Since(since) < rest; {
		time.Sleep(rest / 20)
		before := left
		if left, err = historyLength(ctx, db); left < before {
			since = time.Now()
		}
	}
	if err != nil {
		return err
	}
	conn, err := db.Conn(ctx) // which holds the lock of the export
	if err != nil {
		return err
	}
	defer conn.Close()
	return statements("FLUSH TABLES "+table+" FOR EXPORT", "UNLOCK TABLES", "ANALYZE TABLE "+table)(ctx, conn)
}

// historyLength is that of the list of transactions that left what must still
// be purged, of all databases of the server. It takes the privilege PROCESS.
func historyLength(ctx context.Context, db *sql.DB) (n int64, err error) {
	err = db.QueryRowContext(ctx,
		"SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'").Scan(&n)
	return n, err
}
