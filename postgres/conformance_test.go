package postgres_test

import (
	"context"
	"database/sql"
	"net/url"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/dialect/dialecttest"
	"github.com/sqlqueue/queue/internal/testserver"
	"github.com/sqlqueue/queue/postgres"
)

func TestConformance(t *testing.T) {
	dialecttest.Run(t, engine("postgres", map[string]string{
		"binary_parameters": "binary_parameters=yes",
	}))
}

func TestConformancePgx(t *testing.T) {
	dialecttest.Run(t, engine("pgx", map[string]string{
		"date style":                "datestyle=SQL,DMY", // lib/pq refuses any but its own
		"exec mode exec":            "default_query_exec_mode=exec",
		"exec mode simple_protocol": "default_query_exec_mode=simple_protocol",
		"exec mode cache_describe":  "default_query_exec_mode=cache_describe",
		"exec mode describe_exec":   "default_query_exec_mode=describe_exec",
	}))
}

// engine is PostgreSQL through one driver. modes are the driver's own settings
// that must not matter, as query parameters of a DSN.
func engine(driver string, modes map[string]string) dialecttest.Engine {
	return dialecttest.Engine{
		Name:    "postgres",
		Driver:  driver,
		Dialect: postgres.Dialect{},
		// Not before it is called for: the suite's child processes call this, too.
		NewDatabase: func(tb testing.TB) string { return testserver.Postgres(tb).NewDatabase(tb) },
		Restart: func(tb testing.TB) (string, func(bool)) {
			own := testserver.PrivatePostgres(tb)
			return own.NewDatabase(tb), func(crash bool) {
				mode := testserver.Fast
				if crash {
					mode = testserver.Immediate
				}
				own.Restart(tb, mode)
			}
		},

		AgeLeases: `UPDATE public.queue_job
SET lease_until = lease_until - CAST(:micros AS bigint) * interval '1 microsecond' WHERE lease_until > '-infinity'`,
		AgeDue: `UPDATE public.queue_job
SET run_at = run_at - CAST(:micros AS bigint) * interval '1 microsecond' WHERE run_at IS NOT NULL`,
		AgeArchive: `UPDATE public.queue_archive
SET finished_at = finished_at - CAST(:micros AS bigint) * interval '1 microsecond'`,
		OneBad: `CREATE UNIQUE INDEX one_bad ON public.queue_job (kind) WHERE kind = 'bad'`,

		HostileDSNs:  func(dsn string) map[string]string { return hostileDSNs(dsn, modes) },
		HoldSnapshot: holdSnapshot,
		Analyze:      `ANALYZE`,
		TableReads: `SELECT t.seq_scan AS scans, io.heap_blks_hit + io.heap_blks_read + io.idx_blks_hit + io.idx_blks_read AS pages
FROM pg_stat_user_tables AS t JOIN pg_statio_user_tables AS io USING (relid) WHERE t.relname = 'queue_job'`,
		ServerTime:    serverTime,
		Refusals:      refusals,
		DamageHeaders: `UPDATE public.queue_job SET headers = '{"half' WHERE id = :id`,
		RegressIDs:    []string{`ALTER SEQUENCE public.queue_seq RESTART`},
		ForgetLanes: []string{`DELETE FROM public.queue_lane`,
			`ALTER TABLE public.queue_lane ALTER COLUMN lane RESTART`},
	}
}

func hostileDSNs(dsn string, modes map[string]string) map[string]string {
	out := map[string]string{}
	for name, params := range map[string]string{
		"serializable":      "default_transaction_isolation=serializable",
		"repeatable read":   "default_transaction_isolation=repeatable%20read",
		"time zone":         "TimeZone=Pacific/Chatham&intervalstyle=sql_standard",
		"statement_timeout": "statement_timeout=2s&lock_timeout=2s",
		"search_path":       "search_path=nowhere",
		"planner":           "enable_indexscan=off&enable_nestloop=off&plan_cache_mode=force_custom_plan&jit_above_cost=0",
		"output":            "bytea_output=escape&extra_float_digits=-3&client_min_messages=debug1",
		"syntax":            "standard_conforming_strings=off&backslash_quote=off&transform_null_equals=on&array_nulls=off",
		"functions":         "check_function_bodies=off&plpgsql.variable_conflict=use_variable&session_replication_role=replica",
	} {
		out[name] = with(dsn, params)
	}
	for name, params := range modes {
		out[name] = with(dsn, params)
	}
	return out
}

// with adds query parameters to a DSN.
func with(dsn, params string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err)
	}
	if u.RawQuery != "" {
		params = u.RawQuery + "&" + params
	}
	u.RawQuery = params
	return u.String()
}

func holdSnapshot(ctx context.Context, tb testing.TB, db *sql.DB) (release func()) {
	tb.Helper()
	conn, err := db.Conn(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := tx.ExecContext(ctx, "SELECT 1"); err != nil { // the snapshot begins here
		tb.Fatal(err)
	}
	return func() {
		tx.Rollback()
		conn.Close()
	}
}

func refusals(tb testing.TB, db *sql.DB) map[dialect.Class]error {
	tb.Helper()
	out := map[dialect.Class]error{}
	for class, state := range map[dialect.Class]string{
		dialect.Deadlock: "40P01", dialect.Serialization: "40001", dialect.Busy: "55P03",
	} {
		_, err := db.Exec(`DO $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '` + state + `'; END $$`)
		if err == nil {
			tb.Fatal("nothing was refused")
		}
		out[class] = err
	}
	return out
}

// serverTime reads what PostgreSQL adds up for each database.
func serverTime(tb testing.TB, db *sql.DB) func() time.Duration {
	return func() time.Duration {
		tb.Helper()
		var ms float64
		err := db.QueryRow(`SELECT active_time FROM pg_stat_database WHERE datname = current_database()`).Scan(&ms)
		if err != nil {
			tb.Fatal(err)
		}
		return time.Duration(ms * float64(time.Millisecond))
	}
}
