package testserver

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// A tested is what the tests must know of an engine.
type tested struct {
	*engine
	shared, private func(testing.TB) *Server
	driver          string
	version         string            // a query
	settings        map[string]string // queries for those of servers that are started here, and the answers
	databases       string            // a query: how many have the name
	parse           func(dsn string) (addr, database string, err error)
	newUser         string // a statement with name and password
	dropUser        string // a statement with the name
	as              func(dsn, user, password string) string
	refusal         string // to create a database: a part of the message
	badDSNs         []string
	recovery        string // what a server writes into its log when it starts after a crash
}

var testedEngines = []*tested{testedPostgres, testedMySQL, testedMariaDB}

// eachEngine runs f for each kind of server.
func eachEngine(t *testing.T, f func(t *testing.T, e *tested)) {
	for _, e := range testedEngines {
		t.Run(e.name, func(t *testing.T) { f(t, e) })
	}
}

func TestAllEnginesTested(t *testing.T) {
	if len(testedEngines) != len(engines) {
		t.Errorf("%d of %d engines are tested", len(testedEngines), len(engines))
	}
}

func open(tb testing.TB, e *tested, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open(e.driver, dsn)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { db.Close() })
	return db
}

func exec1(tb testing.TB, db *sql.DB, statement string) {
	tb.Helper()
	if _, err := db.ExecContext(tb.Context(), statement); err != nil {
		tb.Fatalf("%s: %v", statement, err)
	}
}

func query1[T any](tb testing.TB, db *sql.DB, query string) T {
	tb.Helper()
	var v T
	if err := db.QueryRowContext(tb.Context(), query).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return v
}

func (e *tested) addr(tb testing.TB, dsn string) string {
	tb.Helper()
	addr, _, err := e.parse(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	return addr
}

// probed holds what probe found out, by engine and way.
var probed = map[string]error{}

// probe makes a server without starting it, to see whether that way is open on this machine.
func probe(e *tested, from string) error {
	key := e.name + " from " + from
	err, done := probed[key]
	if done {
		return err
	}
	ctx := context.Background()
	var b backend
	if from == FromContainer {
		b, err = e.container(ctx, cmp.Or(os.Getenv(e.env("IMAGE")), e.image))
	} else {
		b, err = e.binaries(ctx)
	}
	if err == nil {
		err = b.remove(ctx)
	}
	probed[key] = err
	return err
}

// eachSource runs f for each kind of server and each way that this machine offers to one of one's own. A
// way that the variables ask for must be open.
func eachSource(t *testing.T, f func(t *testing.T, e *tested, from string)) {
	eachEngine(t, func(t *testing.T, e *tested) {
		for _, from := range []string{FromContainer, FromBinaries} {
			t.Run(from, func(t *testing.T) {
				only, image := os.Getenv(e.env("FROM")), os.Getenv(e.env("IMAGE"))
				if only != "" && only != from {
					t.Skipf("%s=%s", e.env("FROM"), only)
				}
				asked := only == from || (from == FromContainer && image != "")
				if err := probe(e, from); isClosed(err) && !asked {
					t.Skip(err)
				} else if err != nil {
					t.Fatal(err)
				}
				t.Setenv(e.env("FROM"), from)
				f(t, e, from)
			})
		}
	})
}

func TestShared(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *tested) {
		s := e.shared(t)
		if again := e.shared(t); again != s {
			t.Error("two tests of a process do not share a server")
		}
		db := open(t, e, s.DSN)
		if got := query1[string](t, db, e.version); !strings.HasPrefix(got, s.Version) || !cleanVersion.MatchString(s.Version) {
			t.Errorf("Version is %q, the server's %q", s.Version, got)
		}
		if s.From == FromDSN {
			return // its settings are the user's
		}
		for query, want := range e.settings {
			if got := query1[string](t, db, query); got != want {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
		}
	})
}

var cleanVersion = regexp.MustCompile(`^\d+(\.\d+)+$`)

func TestNewDatabase(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *tested) {
		s := e.shared(t)
		exists := func(dsn string) bool {
			_, name, err := e.parse(dsn)
			if err != nil || name == "" {
				t.Fatalf("database %q, %v", name, err)
			}
			return query1[int](t, open(t, e, s.DSN), fmt.Sprintf(e.databases, name)) > 0
		}
		var one, two string
		t.Run("test", func(t *testing.T) {
			one, two = s.NewDatabase(t), s.NewDatabase(t)
			if one == two {
				t.Errorf("two databases have one DSN")
			}
			if !exists(one) || !exists(two) {
				t.Error("a database is missing")
			}
		})
		if exists(one) || exists(two) {
			t.Error("a database was not dropped")
		}

		outer := t
		t.Run("in use", func(t *testing.T) {
			one = s.NewDatabase(t)
			db := open(outer, e, one)
			exec1(t, db, "CREATE TABLE t (id bigint)")
			// A transaction whose end must not be waited for.
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec("INSERT INTO t VALUES (1)"); err != nil {
				t.Fatal(err)
			}
		})
		if exists(one) {
			t.Error("a database in use was not dropped")
		}
	})
}

func TestNewDatabaseRefused(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *tested) {
		s := e.shared(t)
		admin := open(t, e, s.DSN)
		user := "queue_test_" + randomName()
		exec1(t, admin, fmt.Sprintf(e.newUser, user, "hunter2"))
		t.Cleanup(func() {
			if _, err := admin.Exec(fmt.Sprintf(e.dropUser, user)); err != nil {
				t.Error(err)
			}
		})

		setEnv(t, map[string]string{strings.ToUpper(e.name) + "_DSN": e.as(s.DSN, user, "hunter2")})
		fresh := &engine{name: e.name, title: e.title, ping: e.ping,
			createDatabase: e.createDatabase, dropDatabase: e.dropDatabase}
		r := record(t, func(tb testing.TB) { fresh.shared(tb).NewDatabase(tb) })
		if !strings.HasPrefix(r.outcome, "fatal: ") || !strings.Contains(r.outcome, e.env("DSN")) ||
			!strings.Contains(r.outcome, e.refusal) {
			t.Errorf("outcome %q", r.outcome)
		}
		if strings.Contains(r.outcome, "hunter2") {
			t.Errorf("the password is in %q", r.outcome)
		}
	})
}

func TestBadDSN(t *testing.T) {
	eachEngine(t, func(t *testing.T, e *tested) {
		for _, dsn := range e.badDSNs {
			setEnv(t, map[string]string{strings.ToUpper(e.name) + "_DSN": dsn})
			_, err := e.find(false)
			if err == nil || !strings.Contains(err.Error(), e.env("DSN")) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", dsn, err)
			}
		}
	})
}

func TestRestart(t *testing.T) {
	eachSource(t, func(t *testing.T, e *tested, from string) {
		s := e.private(t)
		if s.From != from {
			t.Fatalf("from %s", s.From)
		}
		dsn := s.NewDatabase(t)
		exec1(t, open(t, e, dsn), "CREATE TABLE t (mode varchar(10))")
		for mode, name := range []string{Fast: "fast", Immediate: "immediate"} {
			db := open(t, e, dsn)
			session, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			exec1(t, db, "INSERT INTO t VALUES ('"+name+"')")
			s.Restart(t, Mode(mode))
			if _, err := session.ExecContext(t.Context(), "SELECT 1"); err == nil {
				t.Errorf("%s: a session outlived it", name)
			}
			if n := query1[int](t, open(t, e, dsn), "SELECT count(*) FROM t WHERE mode = '"+name+"'"); n != 1 {
				t.Errorf("%s: a committed row is lost", name)
			}
			log := s.backend.log(t.Context())
			if crashed := strings.Contains(log, e.recovery); crashed != (Mode(mode) == Immediate) {
				t.Errorf("%s: crashed is %v:\n%s", name, crashed, log)
			}
		}
	})
}

// all skips, with -short, what the engines have in common once it was tested with the first.
func all(t *testing.T, e *tested) {
	if testing.Short() && e != testedEngines[0] {
		t.Skip("-short: tested with " + testedEngines[0].name)
	}
}

// The server ends with its test.
func TestPrivateEnds(t *testing.T) {
	eachSource(t, func(t *testing.T, e *tested, _ string) {
		all(t, e)
		var s *Server
		t.Run("test", func(t *testing.T) { s = e.private(t) })
		waitGone(t, e.addr(t, s.DSN), trace(s.backend))
	})
}

// No server outlives a process that is killed, or that ends without Main.
func TestProcessGone(t *testing.T) {
	if !posix {
		t.Skip("watchdogs need a POSIX system")
	}
	eachSource(t, func(t *testing.T, e *tested, from string) {
		all(t, e)
		if _, err := exec.LookPath("docker"); err != nil && from == FromContainer {
			t.Skip("the containers' watchdog needs the docker command")
		}
		for _, how := range []string{"killed", "exits"} {
			t.Run(how, func(t *testing.T) {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), "TESTSERVER_HELPER="+e.name)
				cmd.Stderr = os.Stderr
				stdin, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				stdout, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				lines := bufio.NewScanner(stdout)
				var addr, traces string
				if lines.Scan() {
					addr, traces, _ = strings.Cut(lines.Text(), " ")
				}
				if traces == "" {
					cmd.Process.Kill()
					t.Fatalf("the process did not start a server: %v", cmd.Wait())
				}
				if how == "killed" {
					cmd.Process.Kill()
				} else {
					stdin.Close()
				}
				// Nothing else may hold its standard output: go test would wait for it.
				for lines.Scan() {
				}
				cmd.Wait() // as it was killed, or not
				waitGone(t, addr, traces)
			})
		}
	})
}

// helper is the process of TestProcessGone: it starts a server of the kind, says where, and stays until
// its standard input ends.
func helper(kind string) {
	e := testedEngines[slices.IndexFunc(testedEngines, func(e *tested) bool { return e.name == kind })]
	s, err := e.find(true)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	addr, _, err := e.parse(s.DSN)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(addr, trace(s.backend))
	bufio.NewReader(os.Stdin).ReadByte()
	os.Exit(0)
}

// trace is what must be gone with a server: its directory, or its container's id.
func trace(b backend) string {
	switch b := b.(type) {
	case *daemon:
		return b.dir
	case *dockerContainer:
		return b.container.ID
	default:
		return ""
	}
}

// waitGone waits until nobody listens at addr and the trace is gone.
func waitGone(t *testing.T, addr, trace string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		left := ""
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			c.Close()
			left = "it listens at " + addr
		} else if !filepath.IsAbs(trace) {
			docker, err := dockerProvider(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := docker.Client().ContainerInspect(t.Context(), trace, client.ContainerInspectOptions{}); err == nil {
				left = "its container is there"
			}
		} else if _, err := os.Stat(trace); !errors.Is(err, os.ErrNotExist) {
			left = "its directory is there"
		}
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server outlived its process: %s", left)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
