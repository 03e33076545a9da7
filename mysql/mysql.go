// Package mysql is the dialect for MySQL 8.0.16 and later and MariaDB 10.6 and
// later. It imports no driver: github.com/go-sql-driver/mysql is the documented
// one. No option of its DSN matters for correctness but one: autocommit must be
// on, as it is by default.
//
// # Round trips
//
// A claim is a plain read that finds the first scan with jobs, an UPDATE of rows
// that a subquery has locked with SKIP LOCKED, and a read of what it got. Where
// the session's isolation level is READ COMMITTED each of them runs by itself:
//
//	                     READ COMMITTED    any other default
//	pop, nothing there         1                  1
//	pop                        3                  6
//	push                       2                  5
//	ack of one job             1                  4
//	ack of many                3                  4
//
// Elsewhere the library's transactions set their own level, as no gap may be
// locked, and that is what the other trips are for. So set it in the DSN:
// transaction_isolation='READ-COMMITTED' (MariaDB before 11.1:
// tx_isolation='READ-COMMITTED'), with the quotes as %27.
//
// Statements are prepared once per connection, except where Options.NoPrepare
// is set.
package mysql

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/sqlqueue/queue/dialect"
)

// Dialect is MySQL and MariaDB. The zero value is ready to use.
type Dialect struct{}

//go:embed 0001_init.sql
var init1 string

// Open implements dialect.Dialect. Without a schema in the namespace the tables
// live in the database that the DSN names.
func (Dialect) Open(ns dialect.Namespace) (dialect.Engine, error) {
	ns, err := ns.Normal("")
	if err != nil {
		return nil, err
	}
	return open(ns, "FOR UPDATE SKIP LOCKED"), nil
}

// open renders the dialect. lock is what a claim's scan ends with; a server that
// takes no notice of it makes claims slower, and nothing worse.
func open(ns dialect.Namespace, lock string) *engine {
	e := &engine{ns: ns}
	var first []string
	if ns.Schema != "" {
		first = append(first, e.render(`CREATE DATABASE IF NOT EXISTS {schema}`))
	}
	for _, s := range strings.Split(init1, "\n-- next\n") {
		first = append(first, e.render(strings.TrimSpace(s)))
	}
	e.migrations = []dialect.Migration{{Version: 1, MinCode: 1, Statements: first}}
	e.statements = e.allStatements()
	e.claim = e.claimTexts(lock)
	e.insert = e.insertTexts()
	e.settle = e.settleTexts()
	e.check, e.place = checkText, e.placeText()
	e.facts.Store(&facts{increment: 1, packet: 4 << 20}) // until Check knows the server
	return e
}

func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// now is the server's clock in microseconds, whatever the session's time zone
// and its changes to daylight saving. It stays the same throughout a statement.
const now = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

// render fills in the names of a namespace, and {now}.
func (e *engine) render(text string) string {
	return e.ns.Render(strings.ReplaceAll(text, "{now}", now), quote)
}

type engine struct {
	ns         dialect.Namespace
	migrations []dialect.Migration
	statements dialect.Statements
	claim      claimTexts
	insert     insertTexts
	settle     settleTexts

	check, place string

	facts atomic.Pointer[facts]
}

// facts are what Check found of a server that statements depend on.
type facts struct {
	returning bool  // INSERT and DELETE have RETURNING
	increment int64 // between the ids of rows that one statement stores
	packet    int   // the largest that the server takes, in bytes
}

func (e *engine) Migrations() []dialect.Migration { return e.migrations }
func (e *engine) Statements() *dialect.Statements { return &e.statements }

// seqMask takes the sequence out of a job's id; the lane of birth is kept in a
// column of its own, as the server gives out the sequence alone.
const seqMask = 1<<dialect.SeqBits - 1

func jobID(born int32, seq int64) int64 { return int64(born)<<dialect.SeqBits | seq }

// atomic runs an operation of several statements. In the caller's transaction a
// savepoint makes it all or nothing: an error of a statement does not end the
// transaction, which may still be committed.
func (e *engine) atomic(ctx context.Context, s *dialect.Session, fn func(*dialect.Session) error) error {
	if !s.InTx() {
		return s.Atomic(ctx, fn)
	}
	if _, err := s.Exec(ctx, `SAVEPOINT sqlqueue`); err != nil {
		return err
	}
	err := fn(s)
	// These work also when ctx has ended. If the transaction has been rolled back
	// as a whole, as by a deadlock, there is no savepoint and nothing to undo.
	ctx = context.WithoutCancel(ctx)
	if err != nil {
		s.Exec(ctx, `ROLLBACK TO SAVEPOINT sqlqueue`)
		return err
	}
	_, err = s.Exec(ctx, `RELEASE SAVEPOINT sqlqueue`)
	return err
}

// Oldest versions that the dialect accepts. Both have SKIP LOCKED, JSON_TABLE
// and CHECK constraints that are enforced.
const (
	MinMySQL   = "8.0.16"
	MinMariaDB = "10.6.0"
)

// Check implements dialect.Engine.
func (e *engine) Check(ctx context.Context, s *dialect.Session) (dialect.Server, error) {
	server := dialect.Server{Engine: "mysql", ManyLanes: manyLanes}
	v, err := e.variables(ctx, s)
	if err != nil {
		return server, err
	}
	server.Version, _, _ = strings.Cut(v["version"], "-")
	if maria := strings.Contains(v["version"], "MariaDB"); maria {
		server.Engine = "mariadb"
		// Old clients were told 5.5.5-10.6.…
		server.Version, _, _ = strings.Cut(strings.TrimPrefix(v["version"], "5.5.5-"), "-")
	}
	on := func(name string) bool { return v[name] == "ON" || v[name] == "1" }
	title, least := "MySQL", MinMySQL
	if server.Engine == "mariadb" {
		title, least = "MariaDB", MinMariaDB
	}
	switch {
	case older(server.Version, least):
		return server, fmt.Errorf("%s %s is too old: %s or later is needed, for SELECT … FOR UPDATE SKIP LOCKED", title, server.Version, least)
	case on("sql_safe_updates"):
		return server, errors.New("sql_safe_updates is on in this session, which refuses updates by a list of keys: remove it from the DSN or the server's settings")
	case v["autocommit"] == "OFF":
		return server, errors.New("autocommit is off in this session: what is read outside a transaction would grow old; remove autocommit=0 from the DSN or the server's settings")
	case v["database"] == "" && e.ns.Schema == "":
		return server, errors.New("the DSN names no database: add one after the slash, as in user@tcp(host)/database, or set Options.Schema")
	case on("innodb_read_only") || on("super_read_only") || on("read_only"):
		return server, errors.New("the server is read-only, as replicas are: connect to the primary")
	case on("transaction_read_only") || on("tx_read_only"):
		return server, errors.New("the session's transactions are read-only: the queue writes with every call; remove transaction_read_only from the DSN or the server's settings")
	case on("log_bin") && v["binlog_format"] == "STATEMENT":
		return server, errors.New("binlog_format is STATEMENT, which cannot replicate SKIP LOCKED safely: set it to ROW (or MIXED)")
	}
	if engine := v["table_engine"]; engine != "" && !strings.EqualFold(engine, "InnoDB") {
		return server, fmt.Errorf("the queue's tables are kept by the storage engine %s, which has no transactions: ALTER TABLE … ENGINE = InnoDB", engine)
	}
	isolation := v["transaction_isolation"]
	if isolation == "" {
		isolation = v["tx_isolation"]
	}
	server.Autocommit = isolation == "READ-COMMITTED"
	if !server.Autocommit {
		server.Warnings = append(server.Warnings, fmt.Sprintf("the session's isolation level is %s: the queue's own transactions run at READ COMMITTED and take up to three more round trips each to say so; set transaction_isolation (MariaDB before 11.1: tx_isolation) to 'READ-COMMITTED' in the DSN to spare them", isolation))
	}
	if on("wsrep_on") {
		server.Warnings = append(server.Warnings, "the server is a node of a Galera cluster: commits that conflict between nodes are retried; let one node serve the queue's writes, and migrate through one")
	}
	increment, _ := strconv.ParseInt(v["auto_increment_increment"], 10, 64)
	packet, _ := strconv.Atoi(v["max_allowed_packet"])
	e.facts.Store(&facts{
		returning: server.Engine == "mariadb",
		increment: max(increment, 1),
		packet:    packet,
	})
	// Besides the payload a packet holds names, headers and what frames them.
	server.MaxPayload = packet - 64<<10
	return server, nil
}

// variables returns what Check asks of a server. The names that only one of the
// two families has are missing on the other.
func (e *engine) variables(ctx context.Context, s *dialect.Session) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range []string{e.check, e.place} {
		rows, err := s.Query(ctx, text)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var name string
			var value []byte
			if err := rows.Scan(&name, &value); err != nil {
				return nil, err
			}
			out[strings.ToLower(name)] = string(value)
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

const checkText = `SHOW SESSION VARIABLES WHERE Variable_name IN ('version', 'autocommit', 'transaction_isolation', 'tx_isolation',
  'read_only', 'super_read_only', 'innodb_read_only', 'transaction_read_only', 'tx_read_only', 'log_bin', 'binlog_format',
  'wsrep_on', 'sql_safe_updates', 'auto_increment_increment', 'max_allowed_packet')`

// placeText: the connection's database, and the storage engine of the live table
// if there is one.
func (e *engine) placeText() string {
	schema := "DATABASE()"
	if e.ns.Schema != "" {
		schema = "'" + e.ns.Schema + "'" // letters, digits and _
	}
	return `SELECT 'database', DATABASE()
UNION ALL
SELECT 'table_engine', ENGINE FROM information_schema.TABLES
WHERE TABLE_SCHEMA = ` + schema + ` AND TABLE_NAME = '` + e.ns.Prefix + `job'`
}

// older compares versions such as 8.0.16.
func older(version, than string) bool {
	var a, b [3]int
	fmt.Sscanf(version, "%d.%d.%d", &a[0], &a[1], &a[2])
	fmt.Sscanf(than, "%d.%d.%d", &b[0], &b[1], &b[2])
	return slices.Compare(a[:], b[:]) < 0
}
