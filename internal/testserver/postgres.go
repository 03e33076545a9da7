package testserver

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/lib/pq"
)

// postgresSettings are those of the servers that this package starts. What is not here has PostgreSQL's
// own default; in particular a commit is durable, because the benchmarks measure that.
var postgresSettings = []string{"-c", "max_connections=300"}

// postgresPreload makes pg_stat_statements available, for tests that count statements.
var postgresPreload = []string{"-c", "shared_preload_libraries=pg_stat_statements"}

var postgres = register(&engine{
	name:  "postgres",
	title: "PostgreSQL",
	image: "postgres:18",
	install: "Start Docker, or install PostgreSQL's server (Debian: apt-get install postgresql; " +
		"macOS: brew install postgresql), or set " +
		"QUEUE_TEST_POSTGRES_DSN=postgres://user:password@host:5432/postgres?sslmode=disable",

	container: func(ctx context.Context, image string) (backend, error) {
		password := rand.Text()
		return newContainer(ctx, containerSpec{
			image: image,
			port:  "5432/tcp",
			env:   map[string]string{"POSTGRES_PASSWORD": password},
			args:  slices.Concat(postgresSettings, postgresPreload),
			dsn:   func(addr string) string { return postgresURL(url.UserPassword("postgres", password), addr) },
		})
	},
	binaries: postgresBinaries,

	ping:           pingPostgres,
	createDatabase: createPostgresDatabase,
	dropDatabase:   dropPostgresDatabase,
})

// Postgres returns the PostgreSQL server that this process's tests share. The first call finds it.
func Postgres(tb testing.TB) *Server {
	tb.Helper()
	return postgres.shared(tb)
}

// PrivatePostgres starts a PostgreSQL server for this test alone, which may [Server.Restart] it. It ends
// with the test.
func PrivatePostgres(tb testing.TB) *Server {
	tb.Helper()
	return postgres.own(tb)
}

func postgresURL(user *url.Userinfo, addr string) string {
	u := url.URL{Scheme: "postgres", User: user, Host: addr, Path: "/postgres", RawQuery: "sslmode=disable"}
	return u.String()
}

// parsePostgresURL takes care to keep the URL, which holds a password, out of its error.
func parsePostgresURL(dsn string) (*url.URL, error) {
	u, err := url.Parse(dsn)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") || u.Host == "" {
		return nil, errors.New("want a URL such as postgres://user:password@host:5432/postgres?sslmode=disable")
	}
	return u, nil
}

func pingPostgres(ctx context.Context, dsn string) (version string, err error) {
	err = withPostgres(dsn, func(db *sql.DB) error {
		return db.QueryRowContext(ctx, "SHOW server_version").Scan(&version)
	})
	version, _, _ = strings.Cut(version, " ") // the packager's own version follows
	return version, err
}

func createPostgresDatabase(ctx context.Context, dsn, name string) (string, error) {
	u, err := parsePostgresURL(dsn)
	if err != nil {
		return "", err
	}
	// From template0, as template1 may be in use.
	err = withPostgres(dsn, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, "CREATE DATABASE "+pq.QuoteIdentifier(name)+" TEMPLATE template0")
		return err
	})
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

func dropPostgresDatabase(ctx context.Context, dsn, name string) error {
	return withPostgres(dsn, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, "DROP DATABASE IF EXISTS "+pq.QuoteIdentifier(name)+" WITH (FORCE)")
		return err
	})
}

// withPostgres lends f a pool for a few statements.
func withPostgres(dsn string, f func(*sql.DB) error) error {
	if _, err := parsePostgresURL(dsn); err != nil {
		return err
	}
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return fmt.Errorf("opening the DSN: %w", err)
	}
	return errors.Join(f(db), db.Close())
}

// postgresPlaces are where packages put the server's binaries outside of PATH.
var postgresPlaces = []string{
	"/usr/lib/postgresql/*/bin",         // Debian
	"/usr/pgsql-*/bin",                  // the project's own RPMs
	"/opt/homebrew/opt/postgresql*/bin", // macOS
	"/usr/local/opt/postgresql*/bin",
}

// postgresBinaries makes a cluster for the newest server that this machine has the binaries of.
func postgresBinaries(ctx context.Context) (backend, error) {
	bin := findPostgres(ctx, postgresPlaces)
	if bin == "" {
		return nil, closedf("no postgres with its initdb in PATH or in %s", strings.Join(postgresPlaces, ", "))
	}
	d, err := newDaemon("postgres", syscall.SIGINT, "PG", "postgres", "nobody")
	if err != nil {
		return nil, err
	}
	if err := initPostgres(ctx, d, bin); err != nil {
		return nil, errors.Join(err, d.remove(ctx))
	}
	return d, nil
}

func initPostgres(ctx context.Context, d *daemon, bin string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	data := filepath.Join(d.dir, "data")
	// No password: the server listens on the loopback address alone, and its data are tests'.
	err := d.run(ctx, filepath.Join(bin, "initdb"), "--pgdata", data, "--username=postgres",
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	d.url = postgresURL(url.User("postgres"), net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	d.args = slices.Concat([]string{filepath.Join(bin, "postgres"), "-D", data,
		"-c", "listen_addresses=127.0.0.1", "-c", "port=" + strconv.Itoa(port), "-c", "unix_socket_directories="},
		postgresSettings)
	if hasPgStatStatements(ctx, bin) {
		d.args = append(d.args, postgresPreload...)
	}
	return nil
}

// findPostgres returns the directory of the newest postgres that has its initdb beside it, or "".
func findPostgres(ctx context.Context, places []string) string {
	path := newestProgram("postgres", places, func(path string) []int {
		if _, err := exec.LookPath(filepath.Join(filepath.Dir(path), "initdb")); err != nil {
			return nil
		}
		out, err := exec.CommandContext(ctx, path, "--version").Output()
		if err != nil {
			return nil
		}
		return versionNumbers(string(out))
	})
	if path == "" {
		return ""
	}
	return filepath.Dir(path)
}

// hasPgStatStatements reports whether the extension, which may be a package of its own, is installed.
func hasPgStatStatements(ctx context.Context, bin string) bool {
	lib := filepath.Join(bin, "..", "lib")
	if out, err := exec.CommandContext(ctx, filepath.Join(bin, "pg_config"), "--pkglibdir").Output(); err == nil {
		lib = strings.TrimSpace(string(out))
	}
	found, _ := filepath.Glob(filepath.Join(lib, "pg_stat_statements.*")) // the pattern is well formed
	return len(found) > 0
}
