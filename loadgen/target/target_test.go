package target

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/sqlqueue/queue/bench"
)

func TestParse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.db")
	for _, c := range []struct {
		dsn    string
		engine *bench.Engine
		label  string
	}{
		{"postgres://me:secret@db:5432/app?sslmode=disable", bench.Postgres, "postgres://me@db:5432/app"},
		{"postgresql://db/app?password=secret&user=me", bench.Postgres, "postgres://db/app"},
		{"POSTGRES://me:se%23cret@db/app", bench.Postgres, "postgres://me@db/app"},
		{"postgres:///app?host=/run/postgresql", bench.Postgres, "postgres:///app"},
		{"host=db port=5432 dbname=app user=me password=secret", bench.Postgres, "host=db port=5432 dbname=app user=me"},
		{`host = db password = 'it\'s secret' dbname='my app'`, bench.Postgres, "host=db dbname=my app"},
		{"sqlite://" + file, bench.SQLite, file},
		{"file:" + file, bench.SQLite, file},
		{file, bench.SQLite, file},
		{"some.sqlite", bench.SQLite, "some.sqlite"},
		{"./a=b", bench.SQLite, "./a=b"},
		{"target.go", nil, ""}, // exists, but is none
		{"nonsense", nil, ""},
		{"mysql://me:secret@db:3306/app?tls=skip-verify", bench.MySQL, "mysql://me@db:3306/app"},
		{"MariaDB://me:se%23cret@db/app", bench.MariaDB, "mariadb://me@db/app"},
		{"mariadb://[::1]:3307/app", bench.MariaDB, "mariadb://[::1]:3307/app"},
		{"me:secret@tcp(db:3306)/app?timeout=5s&password=secret", bench.MySQL, "me@tcp(db:3306)/app"},
		{"me:sec@/ret@tcp(db)/app", bench.MySQL, "me@tcp(db:3306)/app"},
		{"me:secret@unix(/run/mysqld/mysqld.sock)/app", bench.MySQL, "me@unix(/run/mysqld/mysqld.sock)/app"},
		{"me:secret@/app", bench.MySQL, "me@tcp(127.0.0.1:3306)/app"},
		{"tcp(db)/app", bench.MySQL, "tcp(db:3306)/app"},
		{"mysql:secret@tcp(db)/app", bench.MySQL, "mysql@tcp(db:3306)/app"},
		{"mysql://me:secret@db", nil, ""},
		{"mysql://me:secret@db/app?strict=true", nil, ""},
		{"mysql://me:secret@db/app?timeout=secret", nil, ""},
		{"mysql://me:secret@db/app?tls=secret", nil, ""},
		{"mysql://me:sec#ret@db/app", nil, ""},
		{"mysql://me:12/secret@db/app", nil, ""},
		{"mysql://me:12?secret@db/app", nil, ""},
		{"mysql:me:secret@db/app", nil, ""},
		{"me:secret@tcp(db)/", nil, ""},
		{"me:secret@tcp(db)/app?strict=true", nil, ""},
		{"me:secret@tcp(db)/app?parseTime=secret", nil, ""},
		{"me:s@/secret@tcp(db)", nil, ""},
		{"me:secret@tcp(db/app", nil, ""},
		{"postgres://me:sec#ret@db/app", nil, ""},
		{"postgres://me:12/secret@db/app", nil, ""},
		{"postgres://me:12?secret@db/app", nil, ""},
		{"postgres:me:secret@db/app", nil, ""},
		{"host=db password='secret", nil, ""},
		{"sqlite:", nil, ""},
		{"sqlite::memory:", nil, ""},
		{"file:" + file + "?_pragma=synchronous(normal)", bench.SQLite, file},
		{"file:x.db?mode=memory", nil, ""},
		{"sqlite:x.db?mode=ro&secret", nil, ""},
	} {
		got, err := Parse(c.dsn)
		if c.engine == nil {
			if err == nil {
				t.Errorf("%s: taken as %s", c.dsn, got.Label)
			} else if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", c.dsn, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.dsn, err)
			continue
		}
		if got.Engine != c.engine || got.Label != c.label || got.Namespace.Prefix != Prefix {
			t.Errorf("%s: %s, %q", c.dsn, got.Engine.Name, got.Label)
		}
	}
}

func TestTemporaryFile(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	got, err := Parse("")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(got.DSN, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := got.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(got.DSN)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestExplainIsOneLineWithoutSecrets(t *testing.T) {
	for _, dsn := range []string{
		"postgres://me:s3cret%2Bpass@db/app?sslpassword=other-s3cret",
		"host=db user=me password='s3cret+pass' sslpassword=other-s3cret",
		"mysql://me:s3cret%2Bpass@db/app?sslpassword=other-s3cret",
		"me:s3cret+pass@tcp(db)/app?sslpassword=other-s3cret",
	} {
		target, err := Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		line := target.Explain(fmt.Errorf("cannot parse %q:\n\tat s3cret+pass and s3cret%%2Bpass and other-s3cret\n%s", dsn, strings.Repeat("x", 1000)))
		if strings.Contains(line, "s3cret") || strings.Contains(line, "\n") || len(line) > 500 {
			t.Errorf("%s: %s", dsn, line)
		}
	}
	short, err := Parse("postgres://me:a@db/app")
	if err != nil {
		t.Fatal(err)
	}
	if line := short.Explain(errors.New("password a was refused")); strings.Contains(line, "refused") {
		t.Errorf("a short password shows in %s", line)
	}
}

// FuzzParse: whatever the name, neither its password nor a line break shows in
// an error or a label.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"postgres://me:%s@db:5432/app?sslmode=disable", "postgres://me:%s", "postgres://%s@db", "host=db password=%s", "host=db password='%s' x",
		"password='%s", "postgres://me@db/app?password=%s&x", "oracle://me:%s@db", "postgres://me:x%s#@db/app", "postgres://me:1/%s@db/app", "pass word=%s",
		"postgres:%s", "me:%s@tcp(db)/app", "me:%s@/app", "me:x@/%s@tcp(db)", "mysql://me:%s@db/app?tls=true", "mariadb://me:%s", "mysql://me:1/%s@db/app",
		"mysql://me:%s@db/app?timeout=x", "me:%s@unix(/run/mysqld.sock)/app?strict=1", "tcp(db)/app?password=%s", "mysql://db/app?password=%s&x", "host=db user=me\npassword = %s\n", `password=\'%s'`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, form string) {
		const secret = "S3CR3TWORD"
		if strings.Count(form, "%s") != 1 || strings.Contains(form, "/%s") && !strings.Contains(form, "@") {
			t.Skip("not a name with one place for a password")
		}
		dsn := strings.Replace(form, "%s", secret, 1)
		before, after, _ := strings.Cut(form, "%s")
		// Only where it stands in the place of a password.
		url := strings.HasSuffix(before, ":") && strings.Contains(before, "://") && strings.Contains(after, "@")
		driver := strings.HasSuffix(before, ":") && strings.Contains(after, "@") && driverForm.MatchString(dsn) && !keyValue.MatchString(dsn)
		if !url && !driver && !strings.HasSuffix(before, "password=") {
			t.Skip("the place is not a password's")
		}
		target, err := Parse(dsn)
		if err != nil {
			if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v", dsn, err)
			}
			return
		}
		defer target.Cleanup(t.Context())
		if target.Engine == bench.SQLite {
			return // a path
		}
		if strings.Contains(target.Label, secret) {
			t.Errorf("%q: label %q", dsn, target.Label)
		}
		if line := target.Explain(fmt.Errorf("cannot use %s", dsn)); strings.Contains(line, secret) || strings.Contains(line, "\n") {
			t.Errorf("%q: %s", dsn, line)
		}
	})
}

func TestMySQLName(t *testing.T) {
	for dsn, want := range map[string]string{
		"mysql://me:p%40ss%2Fw:rd@db:3306/app?tls=true&loc=Europe/Berlin": "me:p@ss/w:rd@tcp(db:3306)/app?tls=true&loc=Europe%2FBerlin",
		"mariadb://db/app": "tcp(db)/app",
		"me@tcp(db)/app":   "me@tcp(db)/app",
	} {
		got, err := Parse(dsn)
		if err != nil || got.DSN != want {
			t.Errorf("%s: %+v, %v", dsn, got, err)
			continue
		}
		if _, err := mysql.ParseDSN(got.DSN); err != nil {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}

func TestMySQLHints(t *testing.T) {
	target, err := Parse("mysql://me@db/app")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{&mysql.MySQLError{Number: 1045, Message: "Access denied for user"}, "password"},
		{&mysql.MySQLError{Number: 1049, Message: "Unknown database"}, "create the database"},
		{&mysql.MySQLError{Number: 1044, Message: "Access denied"}, "GRANT"},
		{&mysql.MySQLError{Number: 1142, Message: "CREATE command denied"}, "GRANT"},
		{&mysql.MySQLError{Number: 1040, Message: "Too many connections"}, "-consumers"},
		{&mysql.MySQLError{Number: 1193, Message: "Unknown system variable"}, "parameters"},
		{&mysql.MySQLError{Number: 3159, Message: "insecure transport"}, "tls=true"},
		{errors.New("unexpected resp from server for caching_sha2_password, perform full authentication"), "public key"},
		{mysql.ErrNoTLS, "leave tls out"},
		{mysql.ErrUnknownPlugin, "IDENTIFIED BY"},
		{mysql.ErrMalformPkt, "port"},
		{errors.New("tls: failed to verify certificate: x509: unknown authority"), "skip-verify"},
	} {
		if line := target.Explain(fmt.Errorf("wrapped: %w", c.err)); !strings.Contains(line, c.want) {
			t.Errorf("%v: no %q in %s", c.err, c.want, line)
		}
	}
}

func TestFound(t *testing.T) {
	target, err := Parse("me@tcp(db)/app")
	if err != nil {
		t.Fatal(err)
	}
	if target.Found("mariadb"); target.Engine != bench.MariaDB {
		t.Errorf("%s", target.Engine.Name)
	}
	if target.Found("another"); target.Engine != bench.MariaDB {
		t.Errorf("%s", target.Engine.Name)
	}
}
