package testserver

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// A mysqlKind is what MySQL and MariaDB, which have their protocol and driver in common, differ in.
type mysqlKind struct {
	name, title  string
	image        string
	install      string   // how to install the server
	rootPassword string   // the image's variable
	settings     []string // besides mysqlSettings
	program      string
	places       []string // where packages put the program outside of PATH
	// initialise is the command that makes the system tables of a server; a closedError says that its
	// program is missing.
	initialise func(server string) ([]string, error)
}

// mysqlSettings are those of the servers that this package starts. What is not here has the server's own
// default; in particular a commit is durable, because the benchmarks measure that. Their default of 128 MB
// for the pages in memory is meant for machines that do something else, too.
var mysqlSettings = []string{"--max-connections=400", "--innodb-buffer-pool-size=256M"}

var mysqlServer = registerMySQL(&mysqlKind{
	name:         "mysql",
	title:        "MySQL",
	image:        "mysql:9",
	install:      "install MySQL's server (macOS: brew install mysql; Debian stable has none)",
	rootPassword: "MYSQL_ROOT_PASSWORD",
	settings: []string{
		"--mysqlx=OFF",            // a second protocol, at a second port
		"--secure-file-priv=NULL", // instead of a directory that the package makes
	},
	program: "mysqld",
	places: []string{
		"/usr/sbin",             // Debian, and Oracle's own RPMs
		"/usr/libexec",          // Fedora
		"/usr/local/mysql*/bin", // Oracle's own archives
		"/opt/homebrew/opt/mysql*/bin",
		"/usr/local/opt/mysql*/bin",
	},
	initialise: func(server string) ([]string, error) {
		return []string{server, "--no-defaults", "--initialize-insecure", "--secure-file-priv=NULL"}, nil
	},
})

var mariaDBServer = registerMySQL(mariaDB)

var mariaDB = &mysqlKind{
	name:         "mariadb",
	title:        "MariaDB",
	image:        "mariadb:11.8",
	install:      "install MariaDB's server (Debian: apt-get install mariadb-server; macOS: brew install mariadb)",
	rootPassword: "MARIADB_ROOT_PASSWORD",
	program:      "mariadbd",
	places: []string{
		"/usr/sbin",             // Debian, and the project's own RPMs
		"/usr/libexec",          // Fedora
		"/usr/local/mysql*/bin", // the project's own archives
		"/opt/homebrew/opt/mariadb*/bin",
		"/usr/local/opt/mariadb*/bin",
	},
	initialise: func(server string) ([]string, error) {
		const script = "mariadb-install-db"
		dir := filepath.Dir(server)
		for _, path := range []string{
			filepath.Join(dir, script),
			filepath.Join(dir, "..", "bin", script),
			filepath.Join(dir, "..", "scripts", script),
			script, // in PATH
		} {
			if found, err := exec.LookPath(path); err == nil {
				return []string{found, "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"}, nil
			}
		}
		return nil, closedf("no %s beside %s or in PATH", script, server)
	},
}

func registerMySQL(k *mysqlKind) *engine {
	return register(&engine{
		name:  k.name,
		title: k.title,
		image: k.image,
		install: "Start Docker, or " + k.install + ", or set QUEUE_TEST_" + strings.ToUpper(k.name) +
			"_DSN=user:password@tcp(host:3306)/",

		container: func(ctx context.Context, image string) (backend, error) {
			password := rand.Text()
			return newContainer(ctx, containerSpec{
				image: image,
				port:  "3306/tcp",
				env:   map[string]string{k.rootPassword: password},
				args:  slices.Concat(mysqlSettings, k.settings),
				dsn:   func(addr string) string { return mysqlDSN(password, addr) },
			})
		},
		binaries: k.binaries,

		ping:           k.ping,
		createDatabase: createMySQLDatabase,
		dropDatabase:   dropMySQLDatabase,
	})
}

// MySQL returns the MySQL server that this process's tests share. The first call finds it.
func MySQL(tb testing.TB) *Server {
	tb.Helper()
	return mysqlServer.shared(tb)
}

// PrivateMySQL starts a MySQL server for this test alone, which may [Server.Restart] it. It ends with the
// test.
func PrivateMySQL(tb testing.TB) *Server {
	tb.Helper()
	return mysqlServer.own(tb)
}

// MariaDB returns the MariaDB server that this process's tests share. The first call finds it.
func MariaDB(tb testing.TB) *Server {
	tb.Helper()
	return mariaDBServer.shared(tb)
}

// PrivateMariaDB starts a MariaDB server for this test alone, which may [Server.Restart] it. It ends with
// the test.
func PrivateMariaDB(tb testing.TB) *Server {
	tb.Helper()
	return mariaDBServer.own(tb)
}

// mysqlDSN is root's, with no database.
func mysqlDSN(password, addr string) string {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr = "root", password, "tcp", addr
	return cfg.FormatDSN()
}

// parseMySQLDSN takes care to keep the DSN, which holds a password, out of its error.
func parseMySQLDSN(dsn string) (*mysql.Config, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("want a DSN such as user:password@tcp(host:3306)/")
	}
	return cfg, nil
}

// withMySQL lends f a pool for a few statements.
func withMySQL(dsn string, f func(*sql.DB) error) error {
	cfg, err := parseMySQLDSN(dsn)
	if err != nil {
		return err
	}
	// The driver tells standard error of each connection that a starting server drops.
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	return errors.Join(f(db), db.Close())
}

func (k *mysqlKind) ping(ctx context.Context, dsn string) (version string, err error) {
	err = withMySQL(dsn, func(db *sql.DB) error {
		return db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
	})
	if err != nil {
		return "", err
	}
	if !k.made(version) {
		return "", errors.New("the server is not " + k.title + ", but says that it is " + version)
	}
	return versionPattern.FindString(version), nil // the packager's own version follows
}

// made reports whether a version is that of a server of this kind: MariaDB names itself, and answers to
// MySQL's names.
func (k *mysqlKind) made(version string) bool {
	return strings.Contains(version, "MariaDB") == (k.title == "MariaDB")
}

func createMySQLDatabase(ctx context.Context, dsn, name string) (string, error) {
	cfg, err := parseMySQLDSN(dsn)
	if err != nil {
		return "", err
	}
	err = withMySQL(dsn, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, "CREATE DATABASE "+name)
		return err
	})
	if err != nil {
		return "", err
	}
	cfg.DBName = name
	return cfg.FormatDSN(), nil
}

func dropMySQLDatabase(ctx context.Context, dsn, name string) error {
	return withMySQL(dsn, func(db *sql.DB) error {
		// To drop a table is to wait for the transactions that have used it.
		err := killMySQLSessions(ctx, db, name)
		// MySQL cannot list the sessions while one of them runs a statement with bytes in it that are no text.
		for isMySQLError(err, 3854) && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
			err = killMySQLSessions(ctx, db, name)
		}
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name)
		return err
	})
}

func isMySQLError(err error, number uint16) bool {
	var failure *mysql.MySQLError
	return errors.As(err, &failure) && failure.Number == number
}

// killMySQLSessions ends the sessions whose database it is.
func killMySQLSessions(ctx context.Context, db *sql.DB, name string) error {
	rows, err := db.QueryContext(ctx, "SELECT id FROM information_schema.processlist WHERE db = ?", name)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, "KILL "+strconv.FormatInt(id, 10))
		const unknownThread = 1094 // it has ended by itself
		if err != nil && !isMySQLError(err, unknownThread) {
			return err
		}
	}
	return rows.Err()
}

// binaries makes the system tables for the newest server that this machine has the program of.
func (k *mysqlKind) binaries(ctx context.Context) (backend, error) {
	server := k.find(ctx, k.places)
	if server == "" {
		return nil, closedf("no %s of %s in PATH or in %s", k.program, k.title, strings.Join(k.places, ", "))
	}
	initialise, err := k.initialise(server)
	if err != nil {
		return nil, err
	}
	d, err := newDaemon(k.name, syscall.SIGTERM, "MYSQL", "mysql", "nobody")
	if err != nil {
		return nil, err
	}
	if err := k.prepare(ctx, d, server, initialise); err != nil {
		return nil, errors.Join(err, d.remove(ctx))
	}
	return d, nil
}

func (k *mysqlKind) prepare(ctx context.Context, d *daemon, server string, initialise []string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	data := "--datadir=" + filepath.Join(d.dir, "data")
	// Of its own: a server of MariaDB that starts clears what it takes for its own from the directory.
	tmp := "--tmpdir=" + d.dir
	// No password: the server listens on the loopback address alone, and its data are tests'.
	if err := d.run(ctx, append(initialise, data, tmp)...); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	d.url = mysqlDSN("", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	d.args = slices.Concat([]string{server, "--no-defaults", data, tmp,
		"--bind-address=127.0.0.1", "--port=" + strconv.Itoa(port),
		"--socket=" + filepath.Join(d.dir, "socket"), "--pid-file=" + filepath.Join(d.dir, "pid"),
	}, mysqlSettings, k.settings)
	return nil
}

// find returns the newest program of this kind, or "".
func (k *mysqlKind) find(ctx context.Context, places []string) string {
	return newestProgram(k.program, places, func(path string) []int {
		out, err := exec.CommandContext(ctx, path, "--no-defaults", "--version").Output()
		if err != nil || !k.made(string(out)) { // MariaDB comes with a mysqld of its own
			return nil
		}
		_, version, _ := strings.Cut(string(out), " Ver ") // the program's path comes first
		return versionNumbers(version)
	})
}
