package dialect

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jmoiron/sqlx"
)

// A Tx is a transaction that somebody else began and will end: a *sql.Tx, a
// *sqlx.Tx or anything with their methods.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// A Session is how statements reach the database: the pool, or one transaction
// of it. Its methods are safe for concurrent use as far as those of the pool or
// the transaction are.
type Session struct {
	*shared
	tx Tx
}

// A DB is the user's pool: a *sql.DB or a *sqlx.DB.
type DB interface {
	Conn(ctx context.Context) (*sql.Conn, error)
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Stats() sql.DBStats
}

type shared struct {
	db         DB
	txOptions  TxOptions
	bind       int
	prepare    bool
	autocommit atomic.Bool

	mu       sync.Mutex
	prepared map[string]*sql.Stmt
	wanted   map[string]bool // seen in a transaction, not prepared yet
}

// NewSession returns the session of a pool. With prepare, the statements that
// engines mark as hot are prepared once per connection. The bind type is one of
// sqlx's.
func NewSession(db DB, txOptions TxOptions, bind int, prepare bool) *Session {
	return &Session{shared: &shared{
		db: db, txOptions: txOptions, bind: bind, prepare: prepare,
		prepared: map[string]*sql.Stmt{}, wanted: map[string]bool{},
	}}
}

// With returns the session of a transaction.
func (s *Session) With(tx Tx) *Session { return &Session{shared: s.shared, tx: tx} }

// InTx reports whether the session is a transaction's.
func (s *Session) InTx() bool { return s.tx != nil }

// SetAutocommit tells what [Engine.Check] found: whether an operation of one
// statement may run outside a transaction.
func (s *Session) SetAutocommit(ok bool) { s.autocommit.Store(ok) }

// Close closes the prepared statements. The pool stays open: it is the user's.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for text, stmt := range s.prepared {
		errs = append(errs, stmt.Close())
		delete(s.prepared, text)
	}
	return errors.Join(errs...)
}

// A CommitError wraps an error that was met while something was being
// committed. If its class is Disconnected, or its cause a context's end, nobody
// can say whether that happened.
type CommitError struct{ Err error }

func (e *CommitError) Error() string { return e.Err.Error() }
func (e *CommitError) Unwrap() error { return e.Err }

// An unsentError came before the statement was sent.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

// Autocommit reports whether each statement is a transaction of its own, at the
// right isolation level.
func (s *Session) Autocommit() bool { return !s.InTx() && s.autocommit.Load() }

// One runs an operation of a single statement: in the session's transaction if
// it has one, else by itself, else (where the server's default isolation is
// not READ COMMITTED) in a transaction of its own.
func (s *Session) One(ctx context.Context, fn func(*Session) error) error {
	switch {
	case s.InTx():
		return fn(s)
	case s.autocommit.Load():
		err := fn(s)
		if unsent := (*unsentError)(nil); err == nil || errors.As(err, &unsent) {
			return err
		}
		return &CommitError{err}
	}
	return s.Atomic(ctx, fn)
}

// Atomic runs an operation of several statements: in the session's transaction
// if it has one, else in one of its own.
func (s *Session) Atomic(ctx context.Context, fn func(*Session) error) error {
	if s.InTx() {
		return fn(s)
	}
	return s.begin(ctx, s.txOptions.First, fn)
}

// Migration runs a migration's transaction, opened by the statement lock and
// ended by the statement unlock, if that is not empty.
func (s *Session) Migration(ctx context.Context, lock, unlock string, fn func(*Session) error) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	// Not with ctx, whose end would roll back and leave the lock to whoever gets
	// the connection next. The statements end with it.
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), s.beginOptions())
	if err != nil {
		return err
	}
	return s.inside(ctx, tx, lock, func(in *Session) error {
		if unlock != "" {
			defer in.Exec(context.WithoutCancel(ctx), unlock)
		}
		return fn(in)
	})
}

func (s *Session) begin(ctx context.Context, first string, fn func(*Session) error) error {
	if err := s.prepareWanted(ctx); err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, s.beginOptions())
	if err != nil {
		return err
	}
	return s.inside(ctx, tx, first, fn)
}

// beginOptions spare the driver the words where the session's default is right.
func (s *Session) beginOptions() *sql.TxOptions {
	if s.autocommit.Load() {
		return nil
	}
	return &sql.TxOptions{Isolation: s.txOptions.Isolation}
}

// inside runs fn in a transaction, and ends that.
func (s *Session) inside(ctx context.Context, tx *sql.Tx, first string, fn func(*Session) error) error {
	// Also ends the transaction when fn panics; after Commit it does nothing.
	defer tx.Rollback()
	in := s.With(tx)
	if first != "" {
		if _, err := in.Exec(ctx, first); err != nil {
			return err
		}
	}
	if err := fn(in); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return &CommitError{err}
	}
	return nil
}

// stmt returns the prepared form of text, or nil if the session cannot use one.
func (s *Session) stmt(ctx context.Context, text string) (*sql.Stmt, error) {
	if !s.prepare {
		return nil, nil
	}
	s.mu.Lock()
	stmt := s.prepared[text]
	if stmt == nil && s.tx != nil {
		// To prepare takes a connection of the pool, and a pool of one has none to
		// spare now. The next operation outside a transaction does it.
		s.wanted[text] = true
	}
	s.mu.Unlock()
	if s.tx == nil {
		if stmt != nil {
			return stmt, nil
		}
		return s.prepareText(ctx, text)
	}
	in, ok := s.tx.(interface {
		StmtContext(context.Context, *sql.Stmt) *sql.Stmt
	})
	if stmt == nil || !ok {
		return nil, nil
	}
	return in.StmtContext(ctx, stmt), nil
}

func (s *Session) prepareText(ctx context.Context, text string) (*sql.Stmt, error) {
	stmt, err := s.db.PrepareContext(ctx, text)
	if err != nil {
		return nil, &unsentError{err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.wanted, text)
	if first := s.prepared[text]; first != nil {
		stmt.Close()
		return first, nil
	}
	s.prepared[text] = stmt
	return stmt, nil
}

func (s *Session) prepareWanted(ctx context.Context) error {
	if !s.prepare {
		return nil
	}
	s.mu.Lock()
	var texts []string
	for text := range s.wanted {
		texts = append(texts, text)
	}
	s.mu.Unlock()
	for _, text := range texts {
		if _, err := s.prepareText(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// QueryHot runs a query that is worth preparing.
func (s *Session) QueryHot(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	stmt, err := s.stmt(ctx, text)
	if err != nil {
		return nil, err
	}
	if stmt != nil {
		if rows, err := stmt.QueryContext(ctx, args...); !s.foreign(err) {
			return rows, err
		}
	}
	return s.Query(ctx, text, args...)
}

// ExecHot runs a statement that is worth preparing.
func (s *Session) ExecHot(ctx context.Context, text string, args ...any) (sql.Result, error) {
	stmt, err := s.stmt(ctx, text)
	if err != nil {
		return nil, err
	}
	if stmt != nil {
		if result, err := stmt.ExecContext(ctx, args...); !s.foreign(err) {
			return result, err
		}
	}
	return s.Exec(ctx, text, args...)
}

// foreign reports that the transaction is of another pool than the prepared
// statements: database/sql says so in words only, and has sent nothing.
func (s *Session) foreign(err error) bool {
	return err != nil && s.tx != nil && strings.HasSuffix(err.Error(), "statement from different database used")
}

// Query runs a query with positional parameters.
func (s *Session) Query(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if s.tx != nil {
		return s.tx.QueryContext(ctx, text, args...)
	}
	return s.db.QueryContext(ctx, text, args...)
}

// Exec runs a statement with positional parameters.
func (s *Session) Exec(ctx context.Context, text string, args ...any) (sql.Result, error) {
	if s.tx != nil {
		return s.tx.ExecContext(ctx, text, args...)
	}
	return s.db.ExecContext(ctx, text, args...)
}

// Params are the values of a statement's :names.
type Params map[string]any

// named binds a statement's :names for the engine.
func (s *Session) named(text string, params Params) (string, []any, error) {
	text, args, err := sqlx.Named(text, map[string]any(params))
	if err != nil {
		return "", nil, err
	}
	return sqlx.Rebind(s.bind, text), args, nil
}

// Select runs one of the engine's [Statements] and maps its rows onto dest, a
// pointer to a slice of structs with db tags, or of single values.
func (s *Session) Select(ctx context.Context, dest any, text string, params Params) error {
	text, args, err := s.named(text, params)
	if err != nil {
		return err
	}
	rows, err := s.Query(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return sqlx.StructScan(bareNames{rows}, dest)
}

// bareNames are rows whose columns are named without their tables, as some
// drivers can be told to name them.
type bareNames struct{ *sql.Rows }

func (r bareNames) Columns() ([]string, error) {
	names, err := r.Rows.Columns()
	for i, name := range names {
		names[i] = name[strings.LastIndexByte(name, '.')+1:]
	}
	return names, err
}

// Estimate runs [Statements.EstimateLane]. ok is false where it says nothing.
func (s *Session) Estimate(ctx context.Context, text string, params Params) (n int64, ok bool, err error) {
	text, args, err := s.named(text, params)
	if err != nil {
		return 0, false, err
	}
	rows, err := s.Query(ctx, text, args...)
	if err != nil {
		return 0, false, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return 0, false, err
	}
	values := make([]any, len(columns))
	for i, name := range columns {
		if name == "n" || name == "rows" {
			values[i] = &n
		} else {
			values[i] = new(any)
		}
	}
	if rows.Next() {
		if err := rows.Scan(values...); err != nil {
			return 0, false, err
		}
		ok = true
	}
	return n, ok, rows.Err()
}

// Run runs one of the engine's [Statements] that returns no rows, and returns
// the number of rows it changed.
func (s *Session) Run(ctx context.Context, text string, params Params) (int64, error) {
	text, args, err := s.named(text, params)
	if err != nil {
		return 0, err
	}
	result, err := s.Exec(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
