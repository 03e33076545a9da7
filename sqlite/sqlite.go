// Package sqlite is the dialect for SQLite 3.42 and later. It imports no
// driver: modernc.org/sqlite is the documented one, and any other for
// database/sql works as well.
//
// [Open] makes a pool with the right settings. Any other pool will do, too, of
// any number of connections; Check warns of what makes one slow.
//
// # One writer
//
// A SQLite database has one write lock. Every transaction of the library's own
// takes it with its first statement, holds it for one batch and waits for its
// turn, within a process in a line and between processes by trying again
// (SQLITE_BUSY is retried like a deadlock elsewhere). A pop that finds nothing
// reads only: an idle queue locks nobody out.
//
// A transaction of the caller's holds the lock from its first write to its end,
// and that is what a handler must know that acks in its own transaction
// (AckTx): until it ends nobody else pushes, pops, acks or extends a lease, in
// any process. There are no row locks, so Extend never answers ErrLeaseBusy: it
// waits like any other write, and gives up when busy_timeout and the retry
// budget are spent. All leases run on meanwhile. So do the work first, then
// begin the transaction that writes its effects and acks, and keep it short.
//
// Begin such a transaction with BEGIN IMMEDIATE, as pools of Open do: one that
// reads first and writes later is refused with SQLITE_BUSY when somebody wrote
// in between, whatever busy_timeout says, and …Tx calls never retry.
//
// # Clock
//
// Times have the resolution of SQLite's clock, a millisecond. A lease lives to
// the end of its last one, so that it is never shorter than asked for.
package sqlite

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sqlqueue/queue/dialect"
)

// Dialect is SQLite. The zero value is ready to use.
type Dialect struct{}

// DefaultSchema is where the queue's tables live unless the options say so: the
// database that the pool opens. Another one must be attached, under that name,
// by every connection of the pool.
const DefaultSchema = "main"

//go:embed 0001_init.sql
var init1 string

// Open implements dialect.Dialect.
func (Dialect) Open(ns dialect.Namespace) (dialect.Engine, error) {
	ns, err := ns.Normal(DefaultSchema)
	if err != nil {
		return nil, err
	}
	if ns.Schema == "temp" {
		return nil, errors.New(`schema "temp": its tables exist in one connection only; use "main", or an attached database`)
	}
	e := &engine{ns: ns}
	own := make(line, 1) // until Check knows the database
	e.line.Store(&own)
	var first []string
	for _, s := range strings.Split(init1, "\n-- next\n") {
		first = append(first, e.render(strings.TrimSpace(s)))
	}
	e.migrations = []dialect.Migration{{Version: 1, MinCode: 1, Statements: first}}
	e.statements = e.allStatements()
	e.claim = e.claimTexts()
	e.insert = e.insertTexts()
	e.settle = e.settleTexts()
	return e, nil
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// now is the database's clock in microseconds. It stays the same throughout a
// statement.
const now = `(CAST(unixepoch('now', 'subsec') * 1000 + 0.5 AS INTEGER) * 1000)`

// render fills in the names of a namespace, and {now}.
func (e *engine) render(text string) string {
	return e.ns.Render(strings.ReplaceAll(text, "{now}", now), quote)
}

type engine struct {
	ns         dialect.Namespace
	migrations []dialect.Migration
	statements dialect.Statements
	claim      claimTexts
	insert     insertTexts
	settle     settleTexts

	line atomic.Pointer[line]
}

// A line is where the writers of a process wait for a database's write lock.
// SQLite has them sleep and try again, so that whoever comes often wins; here
// the first one in line goes on as soon as the lock is free.
type line chan struct{}

// lines are those of all databases, by their files.
var lines sync.Map

func (l line) wait(ctx context.Context, fn func() error) error {
	select {
	case l <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l }()
	return fn()
}

func (e *engine) Migrations() []dialect.Migration { return e.migrations }
func (e *engine) Statements() *dialect.Statements { return &e.statements }

// one runs an operation of a single statement that writes.
func (e *engine) one(ctx context.Context, s *dialect.Session, fn func(*dialect.Session) error) error {
	if s.InTx() {
		return fn(s)
	}
	return (*e.line.Load()).wait(ctx, func() error { return s.One(ctx, fn) })
}

// atomic runs an operation of several statements. In the caller's transaction a
// savepoint makes it all or nothing: an error there does not end the
// transaction, which may still be committed.
func (e *engine) atomic(ctx context.Context, s *dialect.Session, fn func(*dialect.Session) error) error {
	if !s.InTx() {
		return (*e.line.Load()).wait(ctx, func() error { return s.Atomic(ctx, fn) })
	}
	if _, err := s.Exec(ctx, `SAVEPOINT sqlqueue`); err != nil {
		return err
	}
	err := fn(s)
	// These work also when ctx has ended. If the transaction has been rolled back
	// as a whole there is no savepoint any more, and nothing to undo.
	ctx = context.WithoutCancel(ctx)
	if err != nil {
		s.Exec(ctx, `ROLLBACK TO sqlqueue`)
	}
	if _, release := s.Exec(ctx, `RELEASE sqlqueue`); err == nil {
		err = release
	}
	return err
}

// MinVersion is the oldest SQLite that the dialect accepts: the first whose
// clock counts milliseconds, and younger than RETURNING, JSON and ->>.
const MinVersion = "3.42.0"

// Check implements dialect.Engine.
func (e *engine) Check(ctx context.Context, s *dialect.Session) (dialect.Server, error) {
	server := dialect.Server{Engine: "sqlite", Autocommit: true, SharedPool: true}
	read := func(text string, args ...any) ([]string, error) {
		rows, err := s.Query(ctx, text, args...)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		var out []string
		for rows.Next() {
			var v string
			if err := rows.Scan(&v); err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, rows.Err()
	}
	version, err := read(`SELECT sqlite_version()`)
	if err != nil {
		return server, err
	}
	server.Version = version[0]
	if older(server.Version, MinVersion) {
		return server, fmt.Errorf("SQLite %s is too old: %s or later is needed; it is part of the driver, so update that", server.Version, MinVersion)
	}
	file, err := read(`SELECT coalesce(file, '') FROM pragma_database_list WHERE name = ?`, e.ns.Schema)
	if err != nil {
		return server, err
	}
	if len(file) == 0 {
		return server, fmt.Errorf("no database is attached as %q: attach it in every connection of the pool, or leave Options.Schema empty", e.ns.Schema)
	}
	if file[0] != "" {
		shared, _ := lines.LoadOrStore(file[0], make(line, 1))
		l := shared.(line)
		e.line.Store(&l)
	}
	queryOnly, err := read(`PRAGMA query_only`)
	if err != nil {
		return server, err
	}
	if queryOnly[0] != "0" {
		return server, errors.New("PRAGMA query_only is on: the queue writes with every call; turn it off")
	}
	mode, err := read(`PRAGMA ` + quote(e.ns.Schema) + `.journal_mode`)
	if err != nil {
		return server, err
	}
	switch {
	case mode[0] == "off":
		return server, errors.New("PRAGMA journal_mode is off: nothing can be rolled back; use wal")
	case file[0] == "":
		server.Warnings = append(server.Warnings, "the database is in memory: its jobs end with the process; and unless it is a shared one every connection has a database of its own, so keep exactly one (SetMaxOpenConns(1), SetConnMaxLifetime(0), SetConnMaxIdleTime(0))")
	case mode[0] != "wal":
		server.Warnings = append(server.Warnings, fmt.Sprintf("the journal mode is %s: readers and the writer lock each other out, and each commit costs more; use PRAGMA journal_mode = wal, as sqlite.Open does", mode[0]))
	}
	return server, nil
}

// older compares versions such as 3.42.0.
func older(version, than string) bool {
	var a, b [3]int
	fmt.Sscanf(version, "%d.%d.%d", &a[0], &a[1], &a[2])
	fmt.Sscanf(than, "%d.%d.%d", &b[0], &b[1], &b[2])
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
