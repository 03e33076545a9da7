// Package target turns a data source name into a database to measure on, and
// its troubles into one line that says what to do and never holds a password.
//
// A new engine is one entry in the table forms.
package target

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/sqlqueue/queue/bench"
	"github.com/sqlqueue/queue/dialect"
)

// Prefix is that of loadgen's own tables.
const Prefix = "loadgen_"

// A Target is a database to measure on.
type Target struct {
	bench.Target
	// Label names the database without secrets.
	Label string
	// Ours: the tables of Prefix are loadgen's own, to be dropped at the end.
	Ours bool

	form    *form
	secrets []string
	// cleanup removes what Parse and the engine made outside of the tables.
	cleanup func(context.Context) error
}

// A form is how the data source names of an engine are written.
type form struct {
	engine *bench.Engine
	// schemes that a name may begin with, as in "scheme://" or "scheme:".
	schemes []string
	// claims recognises the engine's names that have no scheme. Optional.
	claims func(dsn string) bool
	// parse fills in DSN, Label, secrets and cleanup. Its error says what to do and
	// holds nothing of the name, for that may be a password anywhere.
	parse   func(t *Target, dsn string) error
	example string
	// hint says what to do about an error, or returns "".
	hint func(err error, text string) string
}

// forms in the order in which they are asked; SQLite takes every path.
var forms = []*form{postgresForm, mysqlForm, sqliteForm}

// Parse reads a data source name. The empty one is a SQLite file in a temporary
// directory, which Cleanup removes. Its errors are one line, without secrets.
func Parse(dsn string) (*Target, error) {
	dsn = strings.TrimSpace(dsn)
	f, err := formOf(dsn)
	if err != nil {
		return nil, err
	}
	t := &Target{form: f}
	t.Engine, t.Namespace = f.engine, dialect.Namespace{Prefix: Prefix}
	if err := f.parse(t, dsn); err != nil {
		return nil, err
	}
	for _, s := range t.secrets {
		t.secrets = append(t.secrets, url.QueryEscape(s), url.PathEscape(s))
	}
	if len(t.secrets) > 0 {
		t.secrets = append(t.secrets, t.DSN)
	}
	// Longer ones first, for one may be part of another.
	slices.SortFunc(t.secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return t, nil
}

func formOf(dsn string) (*form, error) {
	scheme, _, found := strings.Cut(dsn, ":")
	var known []string
	for _, f := range forms {
		if found && slices.Contains(f.schemes, strings.ToLower(scheme)) {
			return f, nil
		}
		known = append(known, f.example)
	}
	if found && strings.HasPrefix(dsn[len(scheme):], "://") {
		return nil, fmt.Errorf("-dsn: no engine is known by this scheme: use one of %s", strings.Join(known, ", "))
	}
	for _, f := range forms {
		if f.claims != nil && f.claims(dsn) {
			return f, nil
		}
	}
	return nil, fmt.Errorf("-dsn: this is neither a known URL nor a path: use one of %s", strings.Join(known, ", "))
}

// Found corrects the engine once the server has said what it is: some answer to
// one another's names.
func (t *Target) Found(engine string) {
	for _, e := range bench.Engines {
		if e.Name == engine {
			t.Engine = e
		}
	}
}

// Cleanup removes what belongs to the target besides its tables, once the pools
// are closed.
func (t *Target) Cleanup(ctx context.Context) error {
	if t.cleanup == nil {
		return nil
	}
	return t.cleanup(ctx)
}

// secret reports whether the value of a parameter must not be shown. Only those
// of the keys known to be harmless (in lower case) may be, unless one has
// swallowed what was meant as the next pair: any other may be a password, or a
// misspelt one.
func secret(harmless []string, key, value string) bool {
	key = strings.ToLower(key)
	if slices.Contains(harmless, key) {
		return strings.Contains(value, "password")
	}
	return strings.Contains(key, "password") || len(value) >= 4
}

// Redact takes secrets out of a text.
func (t *Target) Redact(text string) string {
	for _, s := range t.secrets {
		switch {
		case len(s) == 0 || !strings.Contains(text, s):
		case len(s) < 4: // too short to be cut out without a trace
			return "(hidden, for it may hold the password)"
		case s == t.DSN:
			text = strings.ReplaceAll(text, s, t.Label)
		default:
			text = strings.ReplaceAll(text, s, "xxxxx")
		}
	}
	return text
}

// Explain says in one line what went wrong and what to do about it.
func (t *Target) Explain(err error) string {
	text := strings.Join(strings.Fields(t.Redact(err.Error())), " ")
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	hint := t.form.hint(err, text)
	if hint == "" {
		hint = network(err)
	}
	out := fmt.Sprintf("%s at %s: %s", t.Engine.Title, t.Label, text)
	if hint != "" {
		out += ": " + hint
	}
	return out
}

// network knows the errors of connections, whatever the engine.
func network(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer: check host, port and firewall, and that the server is not overloaded"
	case errors.As(err, &dns):
		return "check the host's name"
	case errors.Is(err, fs.ErrNotExist):
		return "check host and path"
	case errors.As(err, &op):
		return "start the server, or check host and port"
	}
	return ""
}
