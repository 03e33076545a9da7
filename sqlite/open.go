package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sqlqueue/queue/dialect"
)

const (
	// openConns is how many connections a pool of Open has. One would be 5 to 10 %
	// faster, and would hang for ever whoever calls the queue while he reads rows
	// or holds a transaction.
	openConns = 8
	// busyTimeout is how long a statement waits for the write lock of another
	// process, or of a transaction of the caller's.
	busyTimeout = 5 * time.Second
	// walLimit is what a checkpoint leaves of a write-ahead log that grew larger,
	// as it does while somebody holds a snapshot.
	walLimit = 64 << 20
)

// Open returns a pool on a database file, which comes into being with its first
// use, with settings that suit a queue:
//
//   - The journal is a write-ahead log (WAL): readers and the writer do not wait
//     for each other. The file must be on a local disk, and may be used by any
//     number of processes of this machine.
//   - PRAGMA synchronous is FULL: what was committed survives a loss of power.
//     With NORMAL the last commits before one may be lost, though nothing is
//     damaged; a queue of small transactions is then several times as fast. To
//     choose it, open "file:jobs.db?_pragma=synchronous(normal)".
//   - Transactions that are not read-only begin with BEGIN IMMEDIATE (see the
//     package documentation). For one that only reads, say so in sql.TxOptions.
//   - A write waits up to 5 s for another one to end.
//   - There are 8 connections, so that a transaction or a walk over rows can be
//     open while the queue is called.
//
// A path that begins with "file:" is a URI of SQLite's or the driver's, whose
// own parameters are kept. ":memory:" is a database of this pool alone, of one
// connection.
//
// The driver is whichever the program imports: modernc.org/sqlite ("sqlite"),
// else one that is registered as "sqlite3".
func Open(path string) (*sql.DB, error) {
	name, err := registered()
	if err != nil {
		return nil, err
	}
	c := &connector{dsn: dsn(path)}
	known, err := sql.Open(name, c.dsn) // the only way to a driver by its name
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	c.driver = known.Driver()
	known.Close()

	c.pragmas = []string{
		fmt.Sprintf("busy_timeout = %d", busyTimeout.Milliseconds()),
		"journal_mode = wal",
		fmt.Sprintf("journal_size_limit = %d", walLimit),
	}
	if !strings.Contains(strings.ToLower(c.dsn), "synchronous") {
		c.pragmas = append(c.pragmas, "synchronous = full")
	}
	db := sql.OpenDB(c)
	conns := openConns
	if strings.Contains(path, ":memory:") || strings.Contains(path, "mode=memory") {
		conns = 1
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	if err := db.Ping(); err != nil {
		db.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return db, nil
}

func registered() (string, error) {
	drivers := sql.Drivers()
	for _, name := range []string{"sqlite", "sqlite3"} {
		if slices.Contains(drivers, name) {
			return name, nil
		}
	}
	return "", errors.New(`no driver for SQLite is registered: import _ "modernc.org/sqlite"`)
}

// dsn makes a URI of a path, as SQLite wants it, for it takes parameters. Every
// driver knows _txlock.
func dsn(path string) string {
	if !strings.HasPrefix(path, "file:") {
		if path != ":memory:" {
			path = filepath.ToSlash(path)
			if filepath.VolumeName(path) != "" {
				path = "/" + path
			}
			path = strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
		}
		path = "file:" + path
	}
	if strings.Contains(path, "_txlock=") {
		return path
	}
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	return path + sep + "_txlock=immediate"
}

// A connector sets up each connection with pragmas, in no driver's own language.
type connector struct {
	driver  driver.Driver
	dsn     string
	pragmas []string
}

func (c *connector) Driver() driver.Driver { return c.driver }

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	for _, pragma := range c.pragmas {
		if err := setPragma(ctx, conn, "PRAGMA "+pragma); err != nil {
			conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

func (c *connector) connect(ctx context.Context) (driver.Conn, error) {
	d, ok := c.driver.(driver.DriverContext)
	if !ok {
		return c.driver.Open(c.dsn)
	}
	connector, err := d.OpenConnector(c.dsn)
	if err != nil {
		return nil, err
	}
	return connector.Connect(ctx)
}

// setPragma tries again for a while: to change the journal mode takes the file
// for oneself, and for that SQLite does not wait.
func setPragma(ctx context.Context, conn driver.Conn, text string) error {
	e, ok := conn.(driver.ExecerContext)
	if !ok {
		return errors.New("this driver is too old: its connections have no ExecContext")
	}
	deadline := time.Now().Add(busyTimeout)
	for {
		_, err := e.ExecContext(ctx, text, nil)
		if err == nil || classify(err) != dialect.Busy || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}
