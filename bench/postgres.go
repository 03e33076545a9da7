package bench

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"time"

	_ "github.com/lib/pq" // the documented driver

	"github.com/sqlqueue/queue/postgres"
)

// Postgres is PostgreSQL, through lib/pq.
var Postgres = &Engine{
	Name: "postgres", Title: "PostgreSQL", Dialect: postgres.Dialect{},
	Open: func(dsn string, conns int) (*sql.DB, error) {
		db, err := sql.Open("postgres", dsn)
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(conns)
		db.SetMaxIdleConns(conns)
		return db, nil
	},
	settle: func(ctx context.Context, db *sql.DB, table string) error {
		for _, text := range []string{"VACUUM (ANALYZE) " + table, "CHECKPOINT"} {
			if _, err := db.ExecContext(ctx, text); err != nil {
				return err
			}
		}
		return nil
	},
	hold: map[string]func(context.Context, *sql.Conn) error{
		"snapshot": statements("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT pg_current_snapshot()"),
		"writer":   statements("BEGIN", "CREATE TEMPORARY TABLE idle_writer (x integer)", "INSERT INTO idle_writer VALUES (1)"),
	},
	deadRows: func(ctx context.Context, db *sql.DB, table string) (n int64, err error) {
		time.Sleep(100 * time.Millisecond) // sessions tell what they did when they end
		err = db.QueryRowContext(ctx, "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = CAST($1 AS regclass)", table).Scan(&n)
		return n, err
	},
	serverTime: func(ctx context.Context, db *sql.DB) (time.Duration, bool) {
		if _, err := db.ExecContext(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
			return 0, false
		}
		var ms float64
		err := db.QueryRowContext(ctx, `SELECT coalesce(sum(total_exec_time), 0) FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND query NOT LIKE '%pg_stat_statements%'`).Scan(&ms)
		return time.Duration(ms * float64(time.Millisecond)), err == nil
	},
	bare: barePostgres,
}

func statements(texts ...string) func(context.Context, *sql.Conn) error {
	return func(ctx context.Context, c *sql.Conn) error {
		for _, text := range texts {
			if _, err := c.ExecContext(ctx, text); err != nil {
				return err
			}
		}
		return nil
	}
}

// barePostgres claims and acks with one prepared statement each, over the ready
// sides of the lanes, each consumer beginning at another lane. The cursors are
// shared, as they are in the library.
func barePostgres(ctx context.Context, b *bareLoop) error {
	if err := b.want([]int{6}, []int{3}); err != nil {
		return err
	}
	type claimed struct {
		step, attempt, maxAttempts     int
		lane                           int64
		id                             sql.NullInt64
		runAt, createdAt, leasedUntil  int64
		kind, uniqueKey, headers, errs string
		payload                        []byte
	}
	for range b.loop.Consumers {
		conn, err := b.db.Conn(ctx)
		if err != nil {
			return err
		}
		b.conns = append(b.conns, conn)
		claim, err := conn.PrepareContext(ctx, b.claim[0].text)
		if err != nil {
			return err
		}
		ack, err := conn.PrepareContext(ctx, b.ack[0].text)
		if err != nil {
			return err
		}
		first := len(b.cycles) % len(b.lanes)
		lanes := append(b.lanes[first:len(b.lanes):len(b.lanes)], b.lanes[:first]...)
		zeros := pgArray(len(lanes), func(int) int64 { return 0 })
		laneArray := pgArray(len(lanes), func(i int) int64 { return int64(lanes[i].lane) })
		claimArgs, ackArgs := slices.Clone(b.claim[0].args), slices.Clone(b.ack[0].args)
		b.cycles = append(b.cycles, func(ctx context.Context, n int) (int, error) {
			token := newToken()
			cursors := pgArray(len(lanes), func(i int) int64 { return lanes[i].cursor.Load() })
			claimArgs = append(append(claimArgs[:0], laneArray, zeros, cursors, zeros, n, token), claimArgs[6:]...)
			rows, err := claim.QueryContext(ctx, claimArgs...)
			if err != nil {
				return 0, err
			}
			defer rows.Close()
			var ids []int64
			var used []int64 // lanes
			var last []int64 // by step
			for rows.Next() {
				var r claimed
				if err := rows.Scan(&r.step, &r.lane, &r.id, &r.runAt, &r.createdAt, &r.leasedUntil,
					&r.attempt, &r.maxAttempts, &r.kind, &r.uniqueKey, &r.headers, &r.errs, &r.payload); err != nil {
					return 0, err
				}
				if !r.id.Valid {
					last = make([]int64, len(lanes))
					continue
				}
				ids = append(ids, r.id.Int64)
				if !slices.Contains(used, r.lane) {
					used = append(used, r.lane)
				}
				last[r.step] = max(last[r.step], r.id.Int64)
			}
			if err := rows.Err(); err != nil {
				return 0, err
			}
			rows.Close()
			for i, id := range last {
				if id > 0 {
					atomicMax(&lanes[i].cursor, id+1)
				}
			}
			if len(ids) == 0 {
				b.rewind()
				return 0, nil
			}
			ackArgs = append(append(ackArgs[:0], token, pgArray(len(used), at(used)), pgArray(len(ids), at(ids))), ackArgs[3:]...)
			acked, err := ack.QueryContext(ctx, ackArgs...)
			if err != nil {
				return 0, err
			}
			return len(ids), countRows(acked, len(ids))
		})
	}
	return nil
}

func at(values []int64) func(int) int64 { return func(i int) int64 { return values[i] } }

// pgArray is the text of an array, as the library sends it.
func pgArray(n int, at func(i int) int64) string {
	b := []byte{'{'}
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, at(i), 10)
	}
	return string(append(b, '}'))
}
