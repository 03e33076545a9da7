package sqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/dialect/dialecttest"
	"github.com/sqlqueue/queue/sqlite"
)

func TestConformance(t *testing.T) {
	dialecttest.Run(t, dialecttest.Engine{
		Name:    "sqlite",
		Driver:  "sqlite",
		Dialect: sqlite.Dialect{},
		NewDatabase: func(tb testing.TB) string {
			return "file:" + filepath.ToSlash(filepath.Join(tb.TempDir(), "queue.db")) +
				"?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"
		},

		AgeLeases:  `UPDATE queue_job SET lease_until = lease_until - :micros WHERE lease_until > 0`,
		AgeDue:     `UPDATE queue_job SET run_at = run_at - :micros WHERE run_at IS NOT NULL`,
		AgeArchive: `UPDATE queue_archive SET finished_at = finished_at - :micros`,
		OneBad:     `CREATE UNIQUE INDEX one_bad ON queue_job (kind) WHERE kind = 'bad'`,
		OneWriter:  true,

		HostileDSNs: hostileDSNs,
		HoldSnapshot: func(ctx context.Context, tb testing.TB, db *sql.DB) (release func()) {
			tb.Helper()
			conn, err := db.Conn(ctx)
			if err != nil {
				tb.Fatal(err)
			}
			tx, err := conn.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
			if err != nil {
				tb.Fatal(err)
			}
			if _, err := tx.ExecContext(ctx, `SELECT count(*) FROM sqlite_master`); err != nil { // the snapshot begins here
				tb.Fatal(err)
			}
			return func() {
				tx.Rollback()
				conn.Close()
			}
		},
		Analyze:       `ANALYZE`,
		Refusals:      refusals,
		DamageHeaders: `UPDATE queue_job SET headers = '{"half' WHERE id = :id`,
		RegressIDs:    []string{`UPDATE queue_lane SET ready_seq = 0, due_seq = 0`},
		ForgetLanes:   []string{`DELETE FROM queue_lane`},
	})
}

func hostileDSNs(dsn string) map[string]string {
	return map[string]string{
		"no settings":       dsn[:strings.Index(dsn, "?")],
		"no busy_timeout":   strings.Replace(dsn, "busy_timeout(20000)", "busy_timeout(0)", 1),
		"rollback journal":  strings.Replace(dsn, "journal_mode(WAL)", "journal_mode(DELETE)", 1),
		"immediate":         dsn + "&_txlock=immediate",
		"exclusive":         dsn + "&_txlock=exclusive",
		"types guessed":     dsn + "&_texttotime=1&_inttotime=1&_time_integer_format=unix_nano",
		"unordered selects": dsn + "&_pragma=reverse_unordered_selects(1)",
		"strict":            dsn + "&_dqs=0&_defensive=1&_pragma=foreign_keys(1)&_pragma=trusted_schema(0)&_pragma=cell_size_check(1)",
		"encoding":          dsn + "&_pragma=encoding('UTF-16')",
		"other pragmas":     dsn + "&_pragma=recursive_triggers(1)&_pragma=automatic_index(0)&_pragma=case_sensitive_like(1)&_pragma=temp_store(2)&_pragma=cache_size(10)",
	}
}

func refusals(tb testing.TB, db *sql.DB) map[dialect.Class]error {
	tb.Helper()
	ctx := tb.Context()
	must := func(err error) {
		if err != nil {
			tb.Helper()
			tb.Fatal(err)
		}
	}
	holder, err := db.Conn(ctx)
	must(err)
	defer holder.Close()
	other, err := db.Conn(ctx)
	must(err)
	defer other.Close()
	_, err = other.ExecContext(ctx, `PRAGMA busy_timeout = 0`)
	must(err)
	_, err = holder.ExecContext(ctx, `BEGIN IMMEDIATE`)
	must(err)
	defer holder.ExecContext(ctx, `ROLLBACK`)
	_, busy := other.ExecContext(ctx, `BEGIN IMMEDIATE`)
	if busy == nil {
		tb.Fatal("nothing was refused")
	}
	_, err = other.ExecContext(ctx, `PRAGMA busy_timeout = 5000`)
	must(err)
	return map[dialect.Class]error{dialect.Busy: busy}
}
