package testserver

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

func open(tb testing.TB, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("postgres", dsn)
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

func query1[T any](tb testing.TB, db *sql.DB, query string, args ...any) T {
	tb.Helper()
	var v T
	if err := db.QueryRowContext(tb.Context(), query, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return v
}

// probes start a server of each kind once, without waiting for it, to see whether that way is open here.
var probes = map[string]func() error{
	FromContainer: sync.OnceValue(func() error {
		image := cmp.Or(os.Getenv("QUEUE_TEST_POSTGRES_IMAGE"), postgres.image)
		return probe(postgres.container(context.Background(), image))
	}),
	FromBinaries: sync.OnceValue(func() error { return probe(postgres.binaries(context.Background())) }),
}

func probe(b backend, err error) error {
	if err != nil {
		return err
	}
	return b.remove(context.Background())
}

// eachSource runs f for each way that this machine offers to a server of one's own. A way that the
// variables ask for must be open.
func eachSource(t *testing.T, f func(t *testing.T, from string)) {
	for _, from := range []string{FromContainer, FromBinaries} {
		t.Run(from, func(t *testing.T) {
			only, image := os.Getenv("QUEUE_TEST_POSTGRES_FROM"), os.Getenv("QUEUE_TEST_POSTGRES_IMAGE")
			if only != "" && only != from {
				t.Skipf("QUEUE_TEST_POSTGRES_FROM=%s", only)
			}
			asked := only == from || (from == FromContainer && image != "")
			if err := probes[from](); isClosed(err) && !asked {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			t.Setenv("QUEUE_TEST_POSTGRES_FROM", from)
			f(t, from)
		})
	}
}

func TestPostgres(t *testing.T) {
	s := Postgres(t)
	if again := Postgres(t); again != s {
		t.Error("two tests of a process do not share a server")
	}
	db := open(t, s.DSN)
	if got := query1[string](t, db, "SHOW server_version"); !strings.HasPrefix(got, s.Version) || s.Version == "" {
		t.Errorf("Version is %q, the server's %q", s.Version, got)
	}
	if s.From == FromDSN {
		return // its settings are the user's
	}
	if got := query1[string](t, db, "SHOW max_connections"); got != "300" {
		t.Errorf("max_connections = %s", got)
	}
	for _, durable := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if got := query1[string](t, db, "SHOW "+durable); got != "on" {
			t.Errorf("%s = %s", durable, got)
		}
	}
}

func TestNewDatabase(t *testing.T) {
	s := Postgres(t)
	exists := func(dsn string) bool {
		u, err := url.Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		return query1[bool](t, open(t, s.DSN), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", u.Path[1:])
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
		exec1(t, open(outer, one), "CREATE TABLE t (id bigint)")
	})
	if exists(one) {
		t.Error("a database in use was not dropped")
	}
}

func TestNewDatabaseRefused(t *testing.T) {
	s := Postgres(t)
	admin := open(t, s.DSN)
	role := "queue_test_" + randomName()
	exec1(t, admin, "CREATE ROLE "+role+" LOGIN PASSWORD 'hunter2'")
	t.Cleanup(func() {
		if _, err := admin.Exec("DROP ROLE " + role); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(s.DSN)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "hunter2")

	setEnv(t, map[string]string{"POSTGRES_DSN": u.String()})
	e := &engine{name: "postgres", title: "PostgreSQL", ping: postgres.ping,
		createDatabase: postgres.createDatabase, dropDatabase: postgres.dropDatabase}
	r := record(t, func(tb testing.TB) { e.shared(tb).NewDatabase(tb) })
	if !strings.HasPrefix(r.outcome, "fatal: ") || !strings.Contains(r.outcome, "QUEUE_TEST_POSTGRES_DSN") ||
		!strings.Contains(r.outcome, "permission denied to create database") {
		t.Errorf("outcome %q", r.outcome)
	}
	if strings.Contains(r.outcome, "hunter2") {
		t.Errorf("the password is in %q", r.outcome)
	}
}

func TestBadDSN(t *testing.T) {
	for _, dsn := range []string{
		"host=127.0.0.1 password=hunter2",
		"postgres://u:hunter2@127.0.0.1:port/postgres",
		"postgres://u:hunter2@127.0.0.1:1/postgres?sslmode=disable",
		"mysql://u:hunter2@127.0.0.1/",
	} {
		setEnv(t, map[string]string{"POSTGRES_DSN": dsn})
		_, err := postgres.find(false)
		if err == nil || !strings.Contains(err.Error(), "QUEUE_TEST_POSTGRES_DSN") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}

func TestRestart(t *testing.T) {
	eachSource(t, func(t *testing.T, from string) {
		s := PrivatePostgres(t)
		if s.From != from {
			t.Fatalf("from %s", s.From)
		}
		dsn := s.NewDatabase(t)
		db := open(t, dsn)
		exec1(t, db, "CREATE TABLE t (mode text)")
		for mode, name := range []string{Fast: "fast", Immediate: "immediate"} {
			started := query1[time.Time](t, db, "SELECT pg_postmaster_start_time()")
			exec1(t, db, "INSERT INTO t VALUES ('"+name+"')")
			s.Restart(t, Mode(mode))
			fresh := open(t, dsn)
			if again := query1[time.Time](t, fresh, "SELECT pg_postmaster_start_time()"); !again.After(started) {
				t.Errorf("%s: the server did not start again", name)
			}
			if n := query1[int](t, fresh, "SELECT count(*) FROM t WHERE mode = $1", name); n != 1 {
				t.Errorf("%s: a committed row is lost", name)
			}
			log := s.backend.log(t.Context())
			if crashed := strings.Contains(log, "was not properly shut down"); crashed != (Mode(mode) == Immediate) {
				t.Errorf("%s: crashed is %v:\n%s", name, crashed, log)
			}
		}
	})
}

// The server ends with its test.
func TestPrivateEnds(t *testing.T) {
	eachSource(t, func(t *testing.T, _ string) {
		var s *Server
		t.Run("test", func(t *testing.T) { s = PrivatePostgres(t) })
		waitGone(t, address(t, s.DSN), trace(s.backend))
	})
}

// No server outlives a process that is killed, or that ends without Main.
func TestProcessGone(t *testing.T) {
	if !posix {
		t.Skip("watchdogs need a POSIX system")
	}
	eachSource(t, func(t *testing.T, from string) {
		if _, err := exec.LookPath("docker"); err != nil && from == FromContainer {
			t.Skip("the containers' watchdog needs the docker command")
		}
		for _, how := range []string{"killed", "exits"} {
			t.Run(how, func(t *testing.T) {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), "TESTSERVER_HELPER="+how, "QUEUE_TEST_POSTGRES_FROM="+from)
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

// helper is the process of TestProcessGone: it starts a server, says where, and stays until its standard
// input ends.
func helper(string) {
	s, err := postgres.find(true)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	u, err := url.Parse(s.DSN)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(u.Host, trace(s.backend))
	bufio.NewReader(os.Stdin).ReadByte()
	os.Exit(0)
}

func address(t *testing.T, dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
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

func TestFindPostgres(t *testing.T) {
	if !posix {
		t.Skip("the fakes are shell scripts")
	}
	root := t.TempDir()
	install := func(dir, version string, programs ...string) {
		dir = filepath.Join(root, dir, "bin")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, p := range programs {
			script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
			if err := os.WriteFile(filepath.Join(dir, p), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	places := []string{filepath.Join(root, "lib", "*", "bin")}
	t.Setenv("PATH", filepath.Join(root, "links"))
	if got := findPostgres(t.Context(), places); got != "" {
		t.Errorf("found %s in nothing", got)
	}
	install("lib/9", "9.6.24", "postgres", "initdb")
	install("lib/15", "15.14 (Debian 15.14-0+deb12u1)", "postgres", "initdb")
	install("lib/16", "16.1", "postgres") // its initdb is missing
	install("lib/17", "", "postgres", "initdb")
	want := filepath.Join(root, "lib/15/bin")
	if got := findPostgres(t.Context(), places); got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	install("own", "18beta1", "postgres", "initdb")
	if err := os.MkdirAll(filepath.Join(root, "links"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "own/bin/postgres"), filepath.Join(root, "links/postgres")); err != nil {
		t.Fatal(err)
	}
	want = filepath.Join(root, "own/bin")
	if got := findPostgres(t.Context(), places); got != want {
		t.Errorf("found %s, want %s", got, want)
	}
}
