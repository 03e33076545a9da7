package dialecttest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"sync"
)

// A driverCall is one call that database/sql makes of a driver.
type driverCall struct {
	op   string // connect, prepare, begin, query, exec, commit or rollback
	text string // of prepare, query and exec
	inTx bool   // between begin and commit or rollback
}

// commits reports whether what the call did is committed when it returns.
func (c driverCall) commits() bool {
	return c.op == "commit" || !c.inTx && (c.op == "query" || c.op == "exec")
}

// A driverFault is what becomes of a call. The zero value lets it pass.
type driverFault struct {
	before error // returned instead of making the call
	after  error // returned although the call was made and had its effect
	broken bool  // the connection is lost with it
}

// A faultyDriver stands between database/sql and an engine's own driver. It
// shows a test each call, and fails those that the test wants to fail.
type faultyDriver struct {
	base driver.Driver
	dsn  string

	mu   sync.Mutex
	hook func(driverCall) driverFault
}

// faulty opens a pool on the fixture's database through a faultyDriver.
func (f *fixture) faulty() (*sql.DB, *faultyDriver) {
	f.Helper()
	d := &faultyDriver{base: f.db.Driver(), dsn: f.dsn}
	db := sql.OpenDB(d)
	db.SetMaxOpenConns(f.e.MaxConns)
	db.SetMaxIdleConns(f.e.MaxConns)
	f.Cleanup(func() { db.Close() })
	return db, d
}

// inject sets what happens to the calls from now on; nil lets them pass.
func (d *faultyDriver) inject(hook func(driverCall) driverFault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = hook
}

func (d *faultyDriver) call(c driverCall) driverFault {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hook == nil {
		return driverFault{}
	}
	return d.hook(c)
}

func (d *faultyDriver) Driver() driver.Driver { return d.base }

func (d *faultyDriver) Connect(ctx context.Context) (driver.Conn, error) {
	if err := d.call(driverCall{op: "connect"}).before; err != nil {
		return nil, err
	}
	var conn driver.Conn
	var err error
	if dc, ok := d.base.(driver.DriverContext); ok {
		var connector driver.Connector
		if connector, err = dc.OpenConnector(d.dsn); err == nil {
			conn, err = connector.Connect(ctx)
		}
	} else {
		conn, err = d.base.Open(d.dsn)
	}
	if err != nil {
		return nil, err
	}
	return &faultyConn{Conn: conn, d: d}, nil
}

var errTooOld = errors.New("dialecttest: the driver has no methods that take a context")

// A faultyConn has each optional interface of a connection, and where its base
// has not, does what database/sql does then.
type faultyConn struct {
	driver.Conn
	d      *faultyDriver
	inTx   bool
	broken bool
	tx     driver.Tx                // open, nil: none
	stmts  map[*faultyStmt]struct{} // not closed yet
}

// do makes a call unless it is to fail.
func (c *faultyConn) do(op, text string, fn func() error) error {
	if c.broken {
		return driver.ErrBadConn
	}
	fault := c.d.call(driverCall{op, text, c.inTx})
	err := fault.before
	if err == nil {
		if err = fn(); err == nil {
			err = fault.after
		}
	}
	if fault.broken {
		c.broken = true
		c.shut() // so that the server rolls back what is open
	}
	return err
}

// shut leaves nothing behind: an embedded engine keeps a connection, and its
// locks, for as long as a statement or a transaction of it is open.
func (c *faultyConn) shut() {
	if c.Conn != nil {
		if c.tx != nil {
			c.tx.Rollback()
		}
		for s := range c.stmts {
			s.Stmt.Close()
		}
		clear(c.stmts)
		c.Conn.Close()
		c.Conn = nil
	}
}

func (c *faultyConn) Close() error {
	c.shut()
	return nil
}

func (c *faultyConn) IsValid() bool {
	if c.broken {
		return false
	}
	if v, ok := c.Conn.(driver.Validator); ok {
		return v.IsValid()
	}
	return true
}

func (c *faultyConn) ResetSession(ctx context.Context) error {
	if c.broken {
		return driver.ErrBadConn
	}
	if r, ok := c.Conn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

func (c *faultyConn) Ping(ctx context.Context) error {
	if c.broken {
		return driver.ErrBadConn
	}
	if p, ok := c.Conn.(driver.Pinger); ok {
		return p.Ping(ctx)
	}
	return nil
}

func (c *faultyConn) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := c.Conn.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

func (c *faultyConn) Prepare(text string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), text)
}

func (c *faultyConn) PrepareContext(ctx context.Context, text string) (stmt driver.Stmt, err error) {
	err = c.do("prepare", text, func() error {
		if p, ok := c.Conn.(driver.ConnPrepareContext); ok {
			stmt, err = p.PrepareContext(ctx, text)
		} else {
			stmt, err = c.Conn.Prepare(text)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s := &faultyStmt{stmt, c, text}
	if c.stmts == nil {
		c.stmts = map[*faultyStmt]struct{}{}
	}
	c.stmts[s] = struct{}{}
	return s, nil
}

func (c *faultyConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *faultyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (tx driver.Tx, err error) {
	err = c.do("begin", "", func() error {
		b, ok := c.Conn.(driver.ConnBeginTx)
		if !ok {
			return errTooOld
		}
		tx, err = b.BeginTx(ctx, opts)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.inTx, c.tx = true, tx
	return &faultyTx{tx, c}, nil
}

func (c *faultyConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (rows driver.Rows, err error) {
	if c.broken {
		return nil, driver.ErrBadConn
	}
	q, ok := c.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip // to prepare and query
	}
	return c.rows(text, func() (driver.Rows, error) { return q.QueryContext(ctx, text, args) })
}

func (c *faultyConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (result driver.Result, err error) {
	if c.broken {
		return nil, driver.ErrBadConn
	}
	e, ok := c.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	err = c.do("exec", text, func() error {
		result, err = e.ExecContext(ctx, text, args)
		return err
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

// rows makes a query. One that fails after its effect is first read to its end:
// only then is it certain that the server has done it.
func (c *faultyConn) rows(text string, query func() (driver.Rows, error)) (rows driver.Rows, err error) {
	if c.broken {
		return nil, driver.ErrBadConn
	}
	fault := c.d.call(driverCall{"query", text, c.inTx})
	err = fault.before
	if err == nil {
		if rows, err = query(); err == nil && fault.after != nil {
			if err = drain(rows); err == nil {
				err = fault.after
			}
		}
	}
	if fault.broken {
		c.broken = true
		c.shut()
	}
	if err != nil {
		return nil, err
	}
	return rows, nil
}

func drain(rows driver.Rows) error {
	row := make([]driver.Value, len(rows.Columns()))
	for {
		if err := rows.Next(row); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return errors.Join(err, rows.Close())
		}
	}
}

type faultyTx struct {
	driver.Tx
	c *faultyConn
}

func (t *faultyTx) Commit() error {
	made := false
	err := t.c.do("commit", "", func() error {
		made, t.c.tx = true, nil
		return t.Tx.Commit()
	})
	if !made && !t.c.broken {
		t.Tx.Rollback() // as a server does that refuses a commit
	}
	t.c.inTx, t.c.tx = false, nil
	return err
}

func (t *faultyTx) Rollback() error {
	err := t.c.do("rollback", "", func() error {
		t.c.tx = nil
		return t.Tx.Rollback()
	})
	t.c.inTx, t.c.tx = false, nil
	return err
}

type faultyStmt struct {
	driver.Stmt
	c    *faultyConn
	text string
}

func (s *faultyStmt) Close() error {
	if s.c.broken {
		return nil // gone with its connection
	}
	delete(s.c.stmts, s)
	return s.Stmt.Close()
}

func (s *faultyStmt) CheckNamedValue(v *driver.NamedValue) error {
	if n, ok := s.Stmt.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(v)
	}
	if s.c.broken {
		return driver.ErrSkip
	}
	return s.c.CheckNamedValue(v)
}

func (s *faultyStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.c.rows(s.text, func() (driver.Rows, error) {
		q, ok := s.Stmt.(driver.StmtQueryContext)
		if !ok {
			return nil, errTooOld
		}
		return q.QueryContext(ctx, args)
	})
}

func (s *faultyStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (result driver.Result, err error) {
	err = s.c.do("exec", s.text, func() error {
		e, ok := s.Stmt.(driver.StmtExecContext)
		if !ok {
			return errTooOld
		}
		result, err = e.ExecContext(ctx, args)
		return err
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}
