package testserver

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
)

var testedMySQL = testedMySQLKind(&tested{
	engine:  mysqlServer,
	shared:  MySQL,
	private: PrivateMySQL,
	settings: map[string]string{
		"SELECT @@performance_schema": "1", // tells who waits for which lock
		"SELECT @@sync_binlog":        "1",
	},
	refusal:  "Error 1044",
	recovery: "Starting XA crash recovery",
})

var testedMariaDB = testedMySQLKind(&tested{
	engine:   mariaDBServer,
	shared:   MariaDB,
	private:  PrivateMariaDB,
	refusal:  "Error 1044",
	recovery: "Starting crash recovery from checkpoint",
})

// testedMySQLKind adds what MySQL and MariaDB have in common.
func testedMySQLKind(e *tested) *tested {
	e.driver = "mysql"
	e.version = "SELECT VERSION()"
	settings := map[string]string{
		"SELECT @@max_connections":                      "400",
		"SELECT @@innodb_buffer_pool_size DIV 1048576":  "256",
		"SELECT @@innodb_flush_log_at_trx_commit":       "1",
		"SELECT @@innodb_doublewrite IN ('1', 'ON')":    "1",
		"SELECT COUNT(*) FROM mysql.user WHERE user=''": "0",
	}
	maps.Copy(settings, e.settings)
	e.settings = settings
	e.databases = "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = '%s'"
	e.parse = func(dsn string) (addr, database string, err error) {
		cfg, err := mysql.ParseDSN(dsn)
		if err != nil {
			return "", "", err
		}
		return cfg.Addr, cfg.DBName, nil
	}
	e.newUser, e.dropUser = "CREATE USER %s IDENTIFIED BY '%s'", "DROP USER %s"
	e.as = func(dsn, user, password string) string {
		cfg, err := mysql.ParseDSN(dsn)
		if err != nil {
			return ""
		}
		cfg.User, cfg.Passwd = user, password
		return cfg.FormatDSN()
	}
	e.badDSNs = []string{
		"u:hunter2@127.0.0.1",
		"u:hunter2@tcp(127.0.0.1:port)/",
		"u:hunter2@tcp(127.0.0.1:1)/",
		"u:x@tcp(127.0.0.1:1)/?timeout=hunter2",
		"mysql://u:hunter2@127.0.0.1/",
		"postgres://u:hunter2@127.0.0.1/",
	}
	return e
}

// A server of the other kind is not what was asked for.
func TestOtherKind(t *testing.T) {
	s := MariaDB(t)
	setEnv(t, map[string]string{"MYSQL_DSN": s.DSN})
	_, err := mysqlServer.find(false)
	if err == nil || !strings.Contains(err.Error(), "QUEUE_TEST_MYSQL_DSN: the server is not MySQL") ||
		!strings.Contains(err.Error(), s.Version+"-MariaDB") {
		t.Errorf("error %v", err)
	}
}

func TestFindMySQL(t *testing.T) {
	if !posix {
		t.Skip("the fakes are shell scripts")
	}
	root := t.TempDir()
	install := func(path, version string) {
		path = filepath.Join(root, path)
		// Like the real ones, beginning with its own path, in which there may be numbers.
		script(t, path, path+"  Ver "+version+" for Linux on x86_64")
	}
	for _, dir := range []string{"links", "8/sbin", "10/sbin"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	places := []string{filepath.Join(root, "*", "sbin")}
	t.Setenv("PATH", filepath.Join(root, "links"))
	kinds := map[string]*mysqlKind{
		"mysqld":   {title: "MySQL", program: "mysqld"},
		"mariadbd": {title: "MariaDB", program: "mariadbd"},
	}
	check := func(program, want string) {
		t.Helper()
		if want != "" {
			want = filepath.Join(root, want)
		}
		if got := kinds[program].find(t.Context(), places); got != want {
			t.Errorf("%s: found %q, want %q", program, got, want)
		}
	}
	check("mysqld", "")
	install("10/sbin/mariadbd", "10.11.14-MariaDB-0+deb12u1")
	link(t, filepath.Join(root, "10/sbin/mariadbd"), filepath.Join(root, "10/sbin/mysqld"))
	link(t, filepath.Join(root, "10/sbin/mariadbd"), filepath.Join(root, "links/mysqld"))
	check("mysqld", "") // for it is MariaDB's
	check("mariadbd", "10/sbin/mariadbd")
	install("8/sbin/mysqld", "8.4.7-2")
	check("mysqld", "8/sbin/mysqld")
	install("11/sbin/mariadbd", "11.8.3-MariaDB")
	check("mariadbd", "11/sbin/mariadbd")
	install("9/sbin/mysqld", "9.7.1")
	check("mysqld", "9/sbin/mysqld")
}

func TestInstallDB(t *testing.T) {
	if !posix {
		t.Skip("the fakes are shell scripts")
	}
	root := t.TempDir()
	t.Setenv("PATH", root)
	server := filepath.Join(root, "sbin", "mariadbd")
	if _, err := mariaDB.initialise(server); !isClosed(err) {
		t.Errorf("error %v", err)
	}
	for _, dir := range []string{".", "scripts", "bin", "sbin"} { // from the last to the first to be tried
		want := filepath.Join(root, dir, "mariadb-install-db")
		script(t, server, "")
		script(t, want, "")
		if got, err := mariaDB.initialise(server); err != nil || got[0] != want {
			t.Errorf("found %q, want %s; %v", got, want, err)
		}
	}
}
