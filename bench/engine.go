package bench

import (
	"context"
	"database/sql"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

// An Engine is what the scenarios must know of a database beyond its dialect.
// A new engine is one value of it, and one entry in Engines.
type Engine struct {
	Name    string // as in QUEUE_TEST_REQUIRE and in the names of benchmarks
	Title   string // for people
	Dialect dialect.Dialect

	// Open opens a pool of up to conns connections, which stay open when idle.
	Open func(dsn string, conns int) (*sql.DB, error)

	// settle, if set, brings a table that was just filled to rest, so that what
	// the filling left behind (pages to write, rows to vacuum) is not measured.
	settle func(ctx context.Context, db *sql.DB, table string) error

	// hold starts what keeps old rows from being cleared away, each on a
	// connection of its own, by name: "snapshot", "writer".
	hold map[string]func(ctx context.Context, c *sql.Conn) error

	// deadRows says about how many there are in a table, or how many transactions
	// left them, whichever the server counts. Optional.
	deadRows func(ctx context.Context, db *sql.DB, table string) (int64, error)

	// serverTime returns the time that the server has spent on statements of this
	// database. Optional; ok is false where the server does not tell.
	serverTime func(ctx context.Context, db *sql.DB) (spent time.Duration, ok bool)

	// bare makes the consumers of a bare loop; see Loop.RunBare.
	bare func(ctx context.Context, b *bareLoop) error
}

// Engines that the scenarios run on.
var Engines = []*Engine{Postgres, MySQL, MariaDB, SQLite}

// Settle brings the target's table of jobs to rest.
func (t Target) Settle(ctx context.Context, db *sql.DB) error {
	if t.Engine.settle == nil {
		return nil
	}
	table, err := t.jobTable()
	if err != nil {
		return err
	}
	return t.Engine.settle(ctx, db, table)
}

// Holds are the names of what Hold can do on the engine.
func (e *Engine) Holds(what string) bool { return e.hold[what] != nil }

// Hold keeps old rows from being cleared away, until release is called: by a
// "snapshot" that another session holds, or by an idle "writer", a transaction
// that wrote something and does nothing more.
func (t Target) Hold(ctx context.Context, what string) (release func() error, err error) {
	db, err := t.Open(1)
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err == nil {
		if err = t.Engine.hold[what](ctx, conn); err != nil {
			conn.Close()
		}
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	return func() error {
		_, err := conn.ExecContext(context.Background(), "ROLLBACK")
		conn.Close()
		db.Close()
		return err
	}, nil
}

func (t Target) deadRows(ctx context.Context) (int64, error) {
	table, err := t.jobTable()
	if err != nil {
		return -1, err
	}
	db, err := t.Open(1)
	if err != nil {
		return -1, err
	}
	defer db.Close()
	return t.Engine.deadRows(ctx, db, table)
}

// HasBare reports that RunBare knows the engine.
func (e *Engine) HasBare() bool { return e.bare != nil }
