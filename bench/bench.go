// Package bench holds the scenarios that measure the queue: plain structs with
// documented fields, run on a real database. The benchmarks beside it and the
// command loadgen run the same code.
//
//	target := bench.Target{Engine: bench.Postgres, DSN: dsn}
//	db, err := target.Open(16)
//	…
//	q, err := target.Queue(db, &queue.Options{Shards: 8})
//	…
//	_, err = bench.Fill{Queue: "q", Jobs: 100_000, Payload: 100}.Run(ctx, q)
//	…
//	result, err := bench.Loop{Queue: "q", Consumers: 8, Batch: 100, Jobs: 100_000}.Run(ctx, q)
//
// The benchmarks, once and small, as CI runs them:
//
//	go test -run '^$' -bench . -benchtime 1x ./bench
//
// The same for benchstat, on two versions of the code:
//
//	go test -run '^$' -bench . -count 10 ./bench > new.txt
//
// The published figures: full size, in five interleaved pairs, printed as a
// table with medians and ranges; it takes hours. Or some of them, at a size of
// your own, or on one engine:
//
//	go test -run '^$' -bench Pairs -timeout 0 ./bench -figures
//	go test -run '^$' -bench 'Pairs/drain-bare$' -timeout 0 ./bench -pairs 5 -jobs 1000000
//	go test -run '^$' -bench 'Pairs/./engine=sqlite' -timeout 0 ./bench -pairs 5
//	go test -run '^$' -bench 'EmptyPop|View' -timeout 0 ./bench -figures
//
// Where the servers come from says package internal/testserver.
package bench

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"regexp"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
)

// A Target is a database to measure on.
type Target struct {
	Engine *Engine
	DSN    string
	// Namespace of the tables; empty: the library's default.
	Namespace dialect.Namespace
}

// Open opens a pool of up to conns connections, all of which stay open.
func (t Target) Open(conns int) (*sql.DB, error) { return t.Engine.Open(t.DSN, conns) }

// Queue returns a queue on a pool, in the target's namespace. opts may be nil.
func (t Target) Queue(db queue.DB, opts *queue.Options) (*queue.Queue, error) {
	var o queue.Options
	if opts != nil {
		o = *opts
	}
	o.Schema, o.Prefix = t.Namespace.Schema, t.Namespace.Prefix
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return queue.New(db, t.Engine.Dialect, &o)
}

// created finds what a statement of a schema's history creates, after comments.
var created = regexp.MustCompile(`(?i)^(?:\s*--[^\n]*\n)*\s*CREATE (?:OR REPLACE )?(TABLE|SEQUENCE|VIEW|FUNCTION|PROCEDURE|TYPE) (?:IF NOT EXISTS )?([^\s(]+)`)

// Drop removes all that Migrate made in the target's namespace, jobs included.
// It goes by the schema's own history, last things first, and minds nothing
// that is not there. A schema (in PostgreSQL's sense) stays.
func (t Target) Drop(ctx context.Context, db *sql.DB) error {
	engine, err := t.Engine.Dialect.Open(t.Namespace)
	if err != nil {
		return err
	}
	var drops []string
	for _, m := range engine.Migrations() {
		for _, text := range m.Statements {
			if c := created.FindStringSubmatch(text); c != nil {
				drops = append(drops, "DROP "+c[1]+" IF EXISTS "+c[2])
			}
		}
	}
	for i := len(drops) - 1; i >= 0; i-- {
		if _, err := db.ExecContext(ctx, drops[i]); err != nil {
			return fmt.Errorf("%s: %w", drops[i], err)
		}
	}
	return nil
}

// jobTable returns the quoted name of the table of live jobs.
func (t Target) jobTable() (string, error) {
	engine, err := t.Engine.Dialect.Open(t.Namespace)
	if err != nil {
		return "", err
	}
	for _, m := range engine.Migrations() {
		for _, text := range m.Statements {
			if c := created.FindStringSubmatch(text); c != nil && jobName.MatchString(c[2]) {
				return c[2], nil
			}
		}
	}
	return "", fmt.Errorf("bench: %s creates no table of jobs", t.Engine.Name)
}

var jobName = regexp.MustCompile("_job[\"`\\]]?$")
