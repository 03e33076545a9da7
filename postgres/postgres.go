// Package postgres is the dialect for PostgreSQL 14 and later. It imports no
// driver: lib/pq is the documented one, and pgx's database/sql driver works as
// well.
//
// A claim is one statement, a call of a function that walks the lanes with
// UPDATE … WHERE ctid = ANY(…) over rows locked with SKIP LOCKED. The functions
// are part of the schema (see Schema), where a DBA can read them.
package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/sqlqueue/queue/dialect"
)

// Dialect is PostgreSQL. The zero value is ready to use.
type Dialect struct{}

// DefaultSchema is where the queue's tables live unless the options say so.
// Every name is qualified by it: the session's search_path does not matter.
const DefaultSchema = "public"

//go:embed 0001_init.sql
var init1 string

// Open implements dialect.Dialect.
func (Dialect) Open(ns dialect.Namespace) (dialect.Engine, error) {
	ns, err := ns.Normal(DefaultSchema)
	if err != nil {
		return nil, err
	}
	render := func(text string) string { return ns.Render(text, quote) }
	e := &engine{
		push: render(`SELECT id, duplicate FROM {push_1}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`),
		claim: render(`SELECT step, lane, id, run_at, created_at, lease_until, attempt, max_attempts, kind, unique_key, headers, errors, payload
FROM {claim_1}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`),
		ack:      render(`SELECT id, 1 FROM {ack_1}($1, $2, $3, $4) AS id`),
		archive:  render(`SELECT id, 1 FROM {archive_1}($1, $2, $3, $4, $5) AS id`),
		giveBack: render(`SELECT id, 1 FROM {return_1}($1, $2, $3, $4, $5, $6) AS id`),
		extend:   render(`SELECT id, outcome FROM {extend_1}($1, $2, $3, $4)`),
	}
	first := []string{render(`CREATE SCHEMA IF NOT EXISTS {schema}`)}
	if ns.Schema == DefaultSchema {
		first = nil // it exists, and creating it takes a right that users may not have
	}
	for _, s := range strings.Split(init1, "\n-- next\n") {
		first = append(first, render(strings.TrimSpace(s)))
	}
	e.migrations = []dialect.Migration{{Version: 1, MinCode: 1, Statements: first}}
	e.statements = statements(render, ns)
	return e, nil
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

type engine struct {
	push, claim, ack, archive, giveBack, extend string

	migrations []dialect.Migration
	statements dialect.Statements
}

func (e *engine) Migrations() []dialect.Migration { return e.migrations }
func (e *engine) Statements() *dialect.Statements { return &e.statements }

// MinVersion is the oldest server that the dialect accepts, as server_version_num.
const MinVersion = 140000

func (e *engine) Check(ctx context.Context, s *dialect.Session) (dialect.Server, error) {
	var rows []struct {
		Version   string `db:"version"`
		Num       int    `db:"num"`
		Isolation string `db:"isolation"`
		ReadOnly  string `db:"read_only"`
		Encoding  string `db:"encoding"`
		Standby   int    `db:"standby"`
	}
	err := s.Select(ctx, &rows, `SELECT current_setting('server_version') AS version,
  CAST(current_setting('server_version_num') AS integer) AS num,
  current_setting('default_transaction_isolation') AS isolation,
  current_setting('default_transaction_read_only') AS read_only,
  current_setting('server_encoding') AS encoding,
  CASE WHEN pg_is_in_recovery() THEN 1 ELSE 0 END AS standby`, nil)
	if err != nil {
		return dialect.Server{}, err
	}
	r := rows[0]
	server := dialect.Server{Engine: "postgres", Version: r.Version, Autocommit: r.Isolation == "read committed"}
	if r.Encoding != "UTF8" {
		server.Warnings = append(server.Warnings, fmt.Sprintf("the database's encoding is %s: names and headers that it cannot hold are refused; UTF8 holds all", r.Encoding))
	}
	switch {
	case r.Num < MinVersion:
		return server, fmt.Errorf("PostgreSQL %s is too old: 14 or later is needed", r.Version)
	case r.Standby == 1:
		return server, fmt.Errorf("the server is a standby and takes no writes: connect to the primary (target_session_attrs=read-write)")
	case r.ReadOnly == "on":
		return server, fmt.Errorf("default_transaction_read_only is on for this role or connection: the queue writes with every call; connect with another role, or turn it off")
	}
	return server, nil
}
