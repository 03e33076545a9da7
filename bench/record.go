package bench

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
)

// A recorder is a driver.Connector that lends out the connections of another
// pool and records the statements that pass through, so that it needs to know
// neither the driver nor the DSN.
type recorder struct {
	base *sql.DB

	mu   sync.Mutex
	seen []recorded
}

// recorded is a statement that ran, or BEGIN, COMMIT or ROLLBACK.
type recorded struct {
	text string
	args []any
}

func newRecorder(base *sql.DB) *recorder { return &recorder{base: base} }

func (r *recorder) Driver() driver.Driver { return r.base.Driver() }

func (r *recorder) Connect(ctx context.Context) (driver.Conn, error) {
	lender, err := r.base.Conn(ctx)
	if err != nil {
		return nil, err
	}
	c := &recordedConn{recorder: r, lender: lender}
	// The connection stays with the lender, which nobody else uses, until Close.
	if err := lender.Raw(func(conn any) error { c.Conn = conn.(driver.Conn); return nil }); err != nil {
		lender.Close()
		return nil, err
	}
	return c, nil
}

func (r *recorder) saw(text string, args []driver.NamedValue) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := recorded{text: text}
	for _, a := range args {
		s.args = append(s.args, a.Value)
	}
	r.seen = append(r.seen, s)
}

func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = nil
}

// since returns the statements that ran since the last reset, in their order,
// without some.
func (r *recorder) since(but map[string]bool) []recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []recorded
	for _, s := range r.seen {
		if !but[s.text] {
			out = append(out, s)
		}
	}
	return out
}

// A recordedConn passes everything on to a driver's connection.
type recordedConn struct {
	driver.Conn
	*recorder
	lender *sql.Conn
}

func (c *recordedConn) Close() error { return c.lender.Close() }

func (c *recordedConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	q, ok := c.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	rows, err := q.QueryContext(ctx, text, args)
	if !errors.Is(err, driver.ErrSkip) {
		c.saw(text, args)
	}
	return rows, err
}

func (c *recordedConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	e, ok := c.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	result, err := e.ExecContext(ctx, text, args)
	if !errors.Is(err, driver.ErrSkip) {
		c.saw(text, args)
	}
	return result, err
}

func (c *recordedConn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	p, ok := c.Conn.(driver.ConnPrepareContext)
	var stmt driver.Stmt
	var err error
	if ok {
		stmt, err = p.PrepareContext(ctx, text)
	} else {
		stmt, err = c.Conn.Prepare(text)
	}
	if err != nil {
		return nil, err
	}
	return &recordedStmt{Stmt: stmt, conn: c, text: text}, nil
}

func (c *recordedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	b, ok := c.Conn.(driver.ConnBeginTx)
	if !ok {
		return nil, errors.New("bench: the driver cannot begin a transaction with options")
	}
	c.saw("BEGIN", nil)
	tx, err := b.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &recordedTx{tx, c}, nil
}

func (c *recordedConn) CheckNamedValue(v *driver.NamedValue) error {
	if check, ok := c.Conn.(driver.NamedValueChecker); ok {
		return check.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

func (c *recordedConn) ResetSession(ctx context.Context) error {
	if r, ok := c.Conn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

func (c *recordedConn) IsValid() bool {
	if v, ok := c.Conn.(driver.Validator); ok {
		return v.IsValid()
	}
	return true
}

type recordedTx struct {
	driver.Tx
	conn *recordedConn
}

func (t *recordedTx) Commit() error   { t.conn.saw("COMMIT", nil); return t.Tx.Commit() }
func (t *recordedTx) Rollback() error { t.conn.saw("ROLLBACK", nil); return t.Tx.Rollback() }

type recordedStmt struct {
	driver.Stmt
	conn *recordedConn
	text string
}

func (s *recordedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	s.conn.saw(s.text, args)
	if q, ok := s.Stmt.(driver.StmtQueryContext); ok {
		return q.QueryContext(ctx, args)
	}
	return nil, errors.New("bench: the driver's statements take no context")
}

func (s *recordedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	s.conn.saw(s.text, args)
	if e, ok := s.Stmt.(driver.StmtExecContext); ok {
		return e.ExecContext(ctx, args)
	}
	return nil, errors.New("bench: the driver's statements take no context")
}

func (s *recordedStmt) CheckNamedValue(v *driver.NamedValue) error {
	if check, ok := s.Stmt.(driver.NamedValueChecker); ok {
		return check.CheckNamedValue(v)
	}
	return s.conn.CheckNamedValue(v)
}
