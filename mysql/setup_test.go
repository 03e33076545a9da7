package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/internal/testserver"
)

func TestClassify(t *testing.T) {
	e := &engine{}
	for number, want := range map[uint16]dialect.Class{
		1213: dialect.Deadlock, 1180: dialect.Deadlock, 3101: dialect.Deadlock, 1020: dialect.Serialization,
		1205: dialect.Busy, 3572: dialect.Busy, 1637: dialect.Busy,
		1062: dialect.UniqueViolation, 1586: dialect.UniqueViolation,
		1146: dialect.MissingSchema, 1049: dialect.MissingSchema,
		1044: dialect.Denied, 1142: dialect.Denied, 1227: dialect.Denied,
		1053: dialect.Disconnected, 1927: dialect.Disconnected, 2013: dialect.Disconnected, 4031: dialect.Disconnected,
		1040: dialect.Unavailable, 1047: dialect.Unavailable, 1203: dialect.Unavailable,
		1064: dialect.Other, 1317: dialect.Other, 3024: dialect.Other, 3819: dialect.Other,
	} {
		err := error(&mysqldriver.MySQLError{Number: number, Message: "x"})
		for _, err := range []error{err, fmt.Errorf("wrapped: %w", errors.Join(errors.New("x"), err))} {
			if got := e.Classify(err); got != want {
				t.Errorf("%v is %v, want %v", err, got, want)
			}
		}
	}
	for _, err := range []error{
		mysqldriver.ErrInvalidConn, driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
		&net.OpError{Op: "read", Err: os.NewSyscallError("read", errors.New("reset"))},
	} {
		if got := e.Classify(fmt.Errorf("wrapped: %w", err)); got != dialect.Disconnected {
			t.Errorf("%v is %v, want disconnected", err, got)
		}
	}
	if got := e.Classify(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errors.New("refused"))}); got != dialect.Unavailable {
		t.Errorf("a refused connection is %v, want unavailable", got)
	}
	for _, err := range []error{nil, errors.New("x"), context.DeadlineExceeded} {
		if got := e.Classify(err); got != dialect.Other {
			t.Errorf("%v is %v, want other", err, got)
		}
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		version, than string
		want          bool
	}{
		{"8.0.15", MinMySQL, true}, {"8.0.16", MinMySQL, false}, {"8.4.0", MinMySQL, false}, {"9.7.4", MinMySQL, false}, {"5.7.44", MinMySQL, true},
		{"10.5.29", MinMariaDB, true}, {"10.6.0", MinMariaDB, false}, {"10.11.19", MinMariaDB, false}, {"11.8.9", MinMariaDB, false},
	} {
		if got := older(c.version, c.than); got != c.want {
			t.Errorf("%s is older than %s: %t", c.version, c.than, got)
		}
	}
}

// TestRefusals: what cannot serve is refused at the first call, with the remedy.
func TestRefusals(t *testing.T) {
	for _, f := range []struct {
		name, isolation, readOnly string
		server                    func(testing.TB) *testserver.Server
	}{
		{"MySQL", "transaction_isolation", "transaction_read_only", testserver.MySQL},
		{"MariaDB", "tx_isolation", "tx_read_only", testserver.MariaDB},
	} {
		t.Run(f.name, func(t *testing.T) {
			dsn := f.server(t).NewDatabase(t)
			for name, c := range map[string]struct {
				change func(*mysqldriver.Config)
				want   string // empty: taken
			}{
				"nothing":      {func(c *mysqldriver.Config) {}, ""},
				"autocommit":   {func(c *mysqldriver.Config) { c.Params = map[string]string{"autocommit": "0"} }, "autocommit is off"},
				"safe updates": {func(c *mysqldriver.Config) { c.Params = map[string]string{"sql_safe_updates": "1"} }, "sql_safe_updates is on"},
				"read-only":    {func(c *mysqldriver.Config) { c.Params = map[string]string{f.readOnly: "1"} }, "read-only"},
				"no database":  {func(c *mysqldriver.Config) { c.DBName = "" }, "names no database"},
			} {
				cfg, err := mysqldriver.ParseDSN(dsn)
				if err != nil {
					t.Fatal(err)
				}
				c.change(cfg)
				q, err := queue.New(openDB(t, cfg.FormatDSN()), Dialect{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer q.Close()
				switch err := q.Migrate(t.Context()); {
				case c.want == "":
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
				case !errors.Is(err, queue.ErrServer) || !strings.Contains(err.Error(), c.want):
					t.Errorf("%s: %v, want %q", name, err, c.want)
				}
			}

			// A table that lost its transactions.
			db := openDB(t, dsn)
			if _, err := db.Exec(`ALTER TABLE queue_job ENGINE = MyISAM`); err != nil {
				t.Fatal(err)
			}
			q, err := queue.New(db, Dialect{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			if _, err := q.Push(t.Context(), queue.NewJob{Queue: "q", Kind: "k"}); !errors.Is(err, queue.ErrServer) || !strings.Contains(err.Error(), "MyISAM") {
				t.Errorf("MyISAM: %v", err)
			}
		})
	}
}

// TestPrivileges: whoever migrates needs no more than DDL on one database, and
// whoever runs only DML: no routines, no triggers, no SUPER.
func TestPrivileges(t *testing.T) {
	families(t, func(t *testing.T, maria bool, db *sqlDB, q *queue.Queue) {
		var name string
		if err := db.QueryRow(`SELECT DATABASE()`).Scan(&name); err != nil {
			t.Fatal(err)
		}
		user := name[len(name)-8:]
		// The server's nameless local users would come before a user of any host.
		users := []string{`'` + user + `'@'%'`, `'` + user + `'@'localhost'`}
		exec := func(format string) {
			for _, user := range users {
				if _, err := db.Exec(fmt.Sprintf(format, user)); err != nil {
					t.Fatal(err)
				}
			}
		}
		exec(`CREATE USER %s IDENTIFIED BY 'pw'`)
		t.Cleanup(func() {
			for _, user := range users {
				db.Exec(`DROP USER ` + user)
			}
		})
		exec(`GRANT SELECT, INSERT, UPDATE, DELETE ON ` + quote(name) + `.* TO %s`)
		cfg, err := mysqldriver.ParseDSN(db.dsn)
		if err != nil {
			t.Fatal(err)
		}
		cfg.User, cfg.Passwd = user, "pw"
		use := func(opts *queue.Options) *queue.Queue {
			// A new pool, as what was granted is not known to open connections.
			q, err := queue.New(openDB(t, cfg.FormatDSN()), Dialect{}, opts)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { q.Close() })
			return q
		}
		ctx := t.Context()
		own := use(nil)
		if err := own.Migrate(ctx); err != nil { // there is nothing to do
			t.Error(err)
		}
		if _, err := own.Push(ctx, queue.NewJob{Queue: "q", Kind: "k", UniqueKey: "u"}); err != nil {
			t.Fatal(err)
		}
		jobs, err := own.Pop(ctx, 1, nil)
		if err != nil || len(jobs) != 1 {
			t.Fatal(len(jobs), err)
		}
		if err := own.Ack(ctx, jobs...); err != nil {
			t.Fatal(err)
		}
		if err := use(&queue.Options{Prefix: "other_"}).Migrate(ctx); err == nil || !strings.Contains(err.Error(), "may not create the schema") {
			t.Errorf("without the right to create: %v", err)
		}
		exec(`GRANT CREATE ON ` + quote(name) + `.* TO %s`)
		if err := use(&queue.Options{Prefix: "third_"}).Migrate(ctx); err != nil {
			t.Errorf("with the right to create: %v", err)
		}
	})
}

// TestPacket: a payload beyond max_allowed_packet is refused before anything is
// written, and a push of many splits itself.
func TestPacket(t *testing.T) {
	families(t, func(t *testing.T, maria bool, db *sqlDB, _ *queue.Queue) {
		var packet int
		if err := db.QueryRow(`SELECT @@max_allowed_packet`).Scan(&packet); err != nil {
			t.Fatal(err)
		}
		if packet > queue.MaxPushBytes {
			t.Fatalf("max_allowed_packet is %d: this test needs one of at most %d", packet, queue.MaxPushBytes)
		}
		q, err := queue.New(db.DB, Dialect{}, &queue.Options{MaxPayload: queue.MaxPushBytes})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		ctx := t.Context()
		var field *queue.FieldError
		if _, err := q.Push(ctx, queue.NewJob{Queue: "q", Kind: "k", Payload: make([]byte, packet)}); !errors.As(err, &field) {
			t.Errorf("a payload of %d bytes: %v", packet, err)
		}
		many := make([]queue.NewJob, 12)
		for i := range many {
			many[i] = queue.NewJob{Queue: "q", Kind: "k", Payload: make([]byte, packet/4)}
			if i == 0 {
				many[i].Payload = make([]byte, packet-64<<10) // the largest there is
			}
			if (i+1)*packet/4+packet > queue.MaxPushBytes {
				many = many[:i]
				break
			}
		}
		if _, err := q.PushMany(ctx, many, nil); err != nil {
			t.Fatalf("%d jobs: %v", len(many), err)
		}
		if s, err := q.Stats(ctx, "q"); err != nil || s.Ready != int64(len(many)) {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// TestDeadlocks: at 256 consumers beside producers no refusal of the library's
// own transactions reaches a caller. The servers' settings are those of
// internal/testserver.
func TestDeadlocks(t *testing.T) {
	consumers, jobs := 256, int64(4_000)
	if testing.Short() {
		jobs = 2_000
	}
	families(t, func(t *testing.T, maria bool, db *sqlDB, q *queue.Queue) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		// As many processes: they share no claims.
		queues := make([]*queue.Queue, 16)
		for i := range queues {
			pool := openDB(t, db.dsn)
			pool.SetMaxOpenConns(consumers / len(queues))
			pool.SetMaxIdleConns(consumers / len(queues))
			var err error
			if queues[i], err = queue.New(pool, Dialect{}, nil); err != nil {
				t.Fatal(err)
			}
			defer queues[i].Close()
		}
		var pushed, acked atomic.Int64
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for n := 0; pushed.Load() < jobs; n++ {
					batch := []queue.NewJob{{Queue: "q", Kind: "k"}, {Queue: "q", Kind: "k", UniqueKey: fmt.Sprint(i, "-", n%7)}, {Queue: "q", Kind: "k", Delay: time.Millisecond}}
					out, err := queues[i].PushMany(ctx, batch, nil)
					if err != nil {
						t.Error(err)
						return
					}
					for _, o := range out {
						if !o.Duplicate {
							pushed.Add(1)
						}
					}
				}
			})
		}
		for i := range consumers {
			wg.Go(func() {
				q := queues[i%len(queues)]
				for acked.Load() < jobs && ctx.Err() == nil {
					got, err := q.Pop(ctx, 5, nil)
					if err != nil {
						t.Error(err)
						return
					}
					for k, job := range got {
						if k == 0 && job.Attempt == 1 {
							err = q.Fail(ctx, job, errUndo, &queue.FailOptions{RetryIn: -1})
						} else if err = q.Ack(ctx, job); err == nil {
							acked.Add(1)
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		var deadlocks, retries int64
		for _, q := range queues {
			c := q.Counters()
			deadlocks, retries = deadlocks+c.Refused.Deadlock, retries+c.Retries.Deadlock
		}
		t.Logf("%d jobs pushed, %d acked, %d deadlocks, %d retries", pushed.Load(), acked.Load(), deadlocks, retries)
		if acked.Load() < jobs {
			t.Errorf("%d jobs were acked, want %d", acked.Load(), jobs)
		}
	})
}
