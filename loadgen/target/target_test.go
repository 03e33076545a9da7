package target

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		{"mysql://me:secret@db/app", nil, ""},
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
		"postgres:%s", "me:%s@tcp(db)/app", "host=db user=me\npassword = %s\n", `password=\'%s'`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, form string) {
		const secret = "S3CR3TWORD"
		if strings.Count(form, "%s") != 1 || strings.Contains(form, "/%s") && !strings.Contains(form, "@") {
			t.Skip()
		}
		dsn := strings.Replace(form, "%s", secret, 1)
		before, after, _ := strings.Cut(form, "%s")
		// Only where it stands in the place of a password.
		url := strings.HasSuffix(before, ":") && strings.Contains(before, "://") && strings.Contains(after, "@")
		if !url && !strings.HasSuffix(before, "password=") {
			t.Skip()
		}
		target, err := Parse(dsn)
		if err != nil {
			if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v", dsn, err)
			}
			return
		}
		defer target.Cleanup(t.Context())
		if target.Engine != bench.Postgres {
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
