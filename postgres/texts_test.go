package postgres

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"github.com/sqlqueue/queue/dialect"
)

// openNothing is a pool that is never connected.
func openNothing(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestClassify(t *testing.T) {
	e := &engine{}
	for code, want := range map[string]dialect.Class{
		"40P01": dialect.Deadlock, "40001": dialect.Serialization, "55P03": dialect.Busy,
		"23505": dialect.UniqueViolation, "42P01": dialect.MissingSchema, "42883": dialect.MissingSchema, "3F000": dialect.MissingSchema,
		"42501": dialect.Denied, "57P01": dialect.Disconnected, "57P02": dialect.Disconnected, "57P03": dialect.Unavailable, "53300": dialect.Unavailable,
		"08000": dialect.Disconnected, "08003": dialect.Disconnected, "08006": dialect.Disconnected, "08P01": dialect.Disconnected,
		"57014": dialect.Other, "22P02": dialect.Other, "XX000": dialect.Other, "": dialect.Other, "0": dialect.Other,
	} {
		for driver, err := range map[string]error{"lib/pq": &pq.Error{Code: pqerror.Code(code)}, "pgx": &pgconn.PgError{Code: code}} {
			if got := e.Classify(err); got != want {
				t.Errorf("%s of %s is %v, want %v", code, driver, got, want)
			}
			if got := e.Classify(fmt.Errorf("wrapped: %w", errors.Join(errors.New("x"), err))); got != want {
				t.Errorf("%s of %s, wrapped, is %v, want %v", code, driver, got, want)
			}
			if want.Transient() != (want == dialect.Deadlock || want == dialect.Serialization || want == dialect.Busy) {
				t.Errorf("%v is transient: %t", want, want.Transient())
			}
		}
	}
	for _, err := range []error{
		driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
		&net.OpError{Op: "read", Err: os.NewSyscallError("read", errors.New("reset"))},
	} {
		if got := e.Classify(fmt.Errorf("wrapped: %w", err)); got != dialect.Disconnected {
			t.Errorf("%v is %v, want disconnected", err, got)
		}
	}
	if got := e.Classify(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errors.New("refused"))}); got != dialect.Unavailable {
		t.Errorf("a refused connection is %v, want unavailable", got)
	}
	for _, err := range []error{errors.New("x"), sql.ErrNoRows, sql.ErrTxDone} {
		if got := e.Classify(err); got != dialect.Other {
			t.Errorf("%v is %v, want other", err, got)
		}
	}
}

// FuzzArray holds the array texts to PostgreSQL's rules: what is in quotes is
// read with \ as the only escape, up to the next quote.
func FuzzArray(f *testing.F) {
	for _, s := range []string{"", `"`, `\`, `\"`, `{a,"b"}`, `NULL`, `null`, ` `, `,`, "a\nb", "😀", `\\\`, `""`, "{", "}"} {
		f.Add(s, s+"x", int64(len(s)))
	}
	f.Fuzz(func(t *testing.T, a, b string, n int64) {
		var texts, ints array
		texts.text(a)
		texts.text(b)
		ints.int(n)
		ints.int(-n)
		got, err := parseTextArray(texts.String())
		if err != nil || len(got) != 2 || got[0] != a || got[1] != b {
			t.Fatalf("%q, %q became %s, read as %q, %v", a, b, texts.String(), got, err)
		}
		if want := fmt.Sprintf("{%d,%d}", n, -n); ints.String() != want {
			t.Fatalf("got %s, want %s", ints.String(), want)
		}
	})
}

// parseTextArray reads a one-dimensional array whose elements are all quoted.
func parseTextArray(s string) ([]string, error) {
	if len(s) < 2 || s[0] != '{' || s[len(s)-1] != '}' {
		return nil, errors.New("no braces")
	}
	s = s[1 : len(s)-1]
	var out []string
	for len(s) > 0 {
		if s[0] != '"' {
			return nil, errors.New("an element without quotes")
		}
		var v []byte
		i := 1
		for ; i < len(s) && s[i] != '"'; i++ {
			if s[i] == '\\' {
				i++
			}
			if i == len(s) {
				return nil, errors.New("ends in an escape")
			}
			v = append(v, s[i])
		}
		if i == len(s) {
			return nil, errors.New("no closing quote")
		}
		out = append(out, string(v))
		if s = s[i+1:]; s != "" {
			if s[0] != ',' || len(s) == 1 {
				return nil, errors.New("no comma")
			}
			s = s[1:]
		}
	}
	return out, nil
}

func TestArrayEmpty(t *testing.T) {
	var a array
	if a.String() != "{}" {
		t.Fatalf("got %s", a.String())
	}
}
