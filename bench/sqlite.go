package bench

import (
	"context"
	"database/sql"
	"slices"
	"sync"

	_ "modernc.org/sqlite" // the documented driver

	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/sqlite"
)

// SQLite is a file, through modernc.org/sqlite. Its pool is that of sqlite.Open,
// whatever number of connections is asked for.
var SQLite = &Engine{
	Name: "sqlite", Title: "SQLite", Dialect: sqlite.Dialect{},
	Open: func(dsn string, conns int) (*sql.DB, error) { return sqlite.Open(dsn) },
	settle: func(ctx context.Context, db *sql.DB, table string) error {
		// So that the log of the filling is not written back while something is
		// measured; as far as nobody holds it.
		rows, err := db.QueryContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)")
		if err != nil {
			return err
		}
		return rows.Close()
	},
	hold: map[string]func(context.Context, *sql.Conn) error{
		// A reader keeps the log from being reset: it grows.
		"snapshot": statements("BEGIN DEFERRED", "SELECT count(*) FROM sqlite_schema"),
	},
	bare: bareSQLite,
}

// bareSQLite claims and acks with one prepared statement each, on one connection
// for which the consumers wait in line: with one write lock there is nothing
// faster. The library's look whether there is anything to claim is left out.
func bareSQLite(ctx context.Context, b *bareLoop) error {
	claim, err := pick(b.claim, "UPDATE", 7) // its time, lease, token, node, limit, from, before
	if err != nil {
		return err
	}
	ack, err := pick(b.ack, "DELETE", 2) // ids, token
	if err != nil {
		return err
	}
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return err
	}
	b.conns = append(b.conns, conn)
	claimStmt, err := conn.PrepareContext(ctx, claim.text)
	if err != nil {
		return err
	}
	ackStmt, err := conn.PrepareContext(ctx, ack.text)
	if err != nil {
		return err
	}
	var line sync.Mutex
	take := func(ctx context.Context, lane *bareLane, n int, token int64) (ids []int64, err error) {
		line.Lock()
		defer line.Unlock()
		from, to := int64(lane.lane)<<dialect.SeqBits, int64(lane.lane+1)<<dialect.SeqBits
		rows, err := claimStmt.QueryContext(ctx, 0, claim.args[1], token, claim.args[3], n, max(from, lane.cursor.Load()), to)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var id, laneColumn, runAt, createdAt, leasedUntil, attempt, maxAttempts int64
			var kind, uniqueKey, headers, errs string
			var payload []byte
			if err := rows.Scan(&laneColumn, &id, &runAt, &createdAt, &leasedUntil, &attempt, &maxAttempts,
				&kind, &uniqueKey, &headers, &errs, &payload); err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
		if len(ids) > 0 {
			atomicMax(&lane.cursor, slices.Max(ids)+1)
		}
		return ids, rows.Err()
	}
	remove := func(ctx context.Context, ids []int64, token int64) error {
		line.Lock()
		defer line.Unlock()
		list := []byte(pgArray(len(ids), at(ids)))
		list[0], list[len(list)-1] = '[', ']'
		rows, err := ackStmt.QueryContext(ctx, string(list), token)
		if err != nil {
			return err
		}
		return countRows(rows, len(ids))
	}
	for i := range b.loop.Consumers {
		first := i % len(b.lanes)
		b.cycles = append(b.cycles, func(ctx context.Context, n int) (int, error) {
			token := newToken()
			for k := range b.lanes {
				ids, err := take(ctx, b.lanes[(first+k)%len(b.lanes)], n, token)
				if err != nil {
					return 0, err
				}
				if len(ids) > 0 {
					return len(ids), remove(ctx, ids, token)
				}
			}
			b.rewind()
			return 0, nil
		})
	}
	return nil
}
