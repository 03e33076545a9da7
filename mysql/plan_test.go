package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/internal/golden"
	"github.com/sqlqueue/queue/internal/testserver"
)

// A sqlDB is a pool and where it leads.
type sqlDB struct {
	*sql.DB
	dsn string
}

// families runs a test on each.
func families(t *testing.T, run func(t *testing.T, maria bool, db *sqlDB, q *queue.Queue)) {
	for _, f := range []struct {
		name   string
		server func(testing.TB) *testserver.Server
	}{{"MySQL", testserver.MySQL}, {"MariaDB", testserver.MariaDB}} {
		t.Run(f.name, func(t *testing.T) {
			dsn := f.server(t).NewDatabase(t)
			db := &sqlDB{openDB(t, dsn), dsn}
			q, err := queue.New(db.DB, Dialect{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { q.Close() })
			if err := q.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			run(t, f.name == "MariaDB", db, q)
		})
	}
}

func openDB(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(8)
	t.Cleanup(func() { db.Close() })
	return db
}

func TestMain(m *testing.M) { testserver.Main(m) }

var namedParam = regexp.MustCompile(`:[a-z_]+`)

// TestPlans reads the plan of every statement over a table with rows, without
// statistics: none scans or sorts the live table, each uses the index it names.
func TestPlans(t *testing.T) {
	families(t, func(t *testing.T, maria bool, db *sqlDB, q *queue.Queue) {
		fill(t, q, 2000)
		e, texts := rendered(t, dialect.Namespace{})
		for i, step := range []dialect.Step{{Lane: 1, FromID: 5}, {Lane: 1, Due: true}, {Lane: 1, Recheck: true, FromID: 9}, {Lane: 1, Only: true, FromID: 7}} {
			texts = append(texts, golden.Text{Name: fmt.Sprint("probe", i), SQL: e.probeText([]dialect.Step{step})})
		}
		explain := "EXPLAIN FORMAT=TRADITIONAL "
		if maria {
			explain = "EXPLAIN "
		}
		explained := 0
		for _, text := range texts {
			verb, _, _ := strings.Cut(text.SQL, " ")
			if !strings.Contains(text.SQL, "queue_job") || strings.Contains(text.SQL, "%[1]d") || verb == "EXPLAIN" {
				continue
			}
			if text.Name == "returning" || text.Name == "rows" {
				continue // they read nothing
			}
			bare := namedParam.ReplaceAllString(text.SQL, "?")
			args := make([]any, strings.Count(bare, "?"))
			for i := range args {
				args[i] = 1
			}
			if strings.Contains(bare, "JSON_TABLE(?") || strings.Contains(bare, "CAST(? AS BINARY)") {
				for i := range args {
					args[i] = "1"
				}
				at := strings.Count(bare[:strings.Index(bare, "JSON_TABLE(")], "?")
				args[at] = `[[0, 1, 0, 0, 0, ""], [0, 2, 0, 0, 0, ""]]`
			}
			explained++
			for _, row := range plan(t, db, explain+bare, args...) {
				table, kind, extra := row["table"], row["type"], row["Extra"]
				live := table == "j" || table == "queue_job"
				if live && (kind == "ALL" || kind == "index") {
					t.Errorf("%s scans the live table: %v\n%s", text.Name, row, text.SQL)
				}
				if live && strings.Contains(extra, "filesort") {
					t.Errorf("%s sorts the live table: %v\n%s", text.Name, row, text.SQL)
				}
				if live && text.Name == "Occupied" && !strings.Contains(extra, "Using index for group-by") {
					t.Errorf("%s is no skip scan: %v", text.Name, row)
				}
			}
		}
		if explained < 25 {
			t.Errorf("%d statements were explained", explained)
		}
	})
}

// plan is what EXPLAIN says, a map for each row.
func plan(t *testing.T, db *sqlDB, text string, args ...any) []map[string]string {
	t.Helper()
	rows, err := db.Query(text, args...)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]string
	for rows.Next() {
		values, dest := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		if err := rows.Scan(dest...); err != nil {
			t.Fatal(err)
		}
		row := map[string]string{}
		for i, c := range columns {
			row[c] = values[i].String
		}
		out = append(out, row)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func fill(t *testing.T, q *queue.Queue, n int) []queue.Pushed {
	t.Helper()
	jobs := make([]queue.NewJob, n)
	for i := range jobs {
		jobs[i] = queue.NewJob{Queue: "q", Kind: "k"}
	}
	out, err := q.PushMany(t.Context(), jobs, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestLocks counts the rows that claims and acks lock: those that they take, and
// no gap, also where the session's default isolation would lock some.
func TestLocks(t *testing.T) {
	families(t, func(t *testing.T, maria bool, db *sqlDB, q *queue.Queue) {
		ctx := t.Context()
		fill(t, q, 1000)
		jobs, err := q.Pop(ctx, 300, nil) // leased, so that the next claim has to pass over them
		if err != nil {
			t.Fatal(err)
		}
		e, _ := rendered(t, dialect.Namespace{})
		st := e.Statements()
		s := dialect.NewSession(db, st.TxOptions, st.Bind, false)
		locks := func(what string, want int, run func(*dialect.Session) error) {
			t.Helper()
			err := s.Atomic(ctx, func(s *dialect.Session) error {
				if err := run(s); err != nil {
					return err
				}
				if rows, gaps := lockedRows(t, maria, s); rows != want || gaps != 0 {
					t.Errorf("%s: %d rows and %d gaps are locked, want %d and none", what, rows, gaps, want)
				}
				return errUndo
			})
			if err != errUndo {
				t.Fatalf("%s: %v", what, err)
			}
		}
		locks("a claim", 100, func(s *dialect.Session) error {
			got, err := e.Claim(ctx, s, dialect.ClaimRequest{Steps: []dialect.Step{{Lane: 1}}, N: 100, Token: 1, Node: 1, Lease: 1e9})
			if err == nil && len(got.Rows) != 100 {
				err = fmt.Errorf("%d jobs", len(got.Rows))
			}
			return err
		})
		acks := make([]dialect.Settlement, 100)
		for i, j := range jobs[100:200] {
			acks[i] = dialect.Settlement{Lane: 1, ID: j.ID, Token: tokenOf(t, db, j.ID), Verdict: dialect.Delete}
		}
		locks("an ack", 100, func(s *dialect.Session) error {
			outcomes, err := e.Settle(ctx, s, acks)
			for _, o := range outcomes {
				if o != dialect.Applied {
					err = fmt.Errorf("an ack was answered with %d", o)
				}
			}
			return err
		})
	})
}

var errUndo = fmt.Errorf("undo")

func tokenOf(t *testing.T, db *sqlDB, id int64) (token int64) {
	t.Helper()
	if err := db.QueryRow(`SELECT token FROM queue_job WHERE id = ?`, id&seqMask).Scan(&token); err != nil {
		t.Fatal(err)
	}
	return token
}

// lockedRows counts the rows of the live table that the transaction has locked,
// and the gaps. MariaDB tells their number alone, in which a gap is a row.
func lockedRows(t *testing.T, maria bool, s *dialect.Session) (rows, gaps int) {
	t.Helper()
	text := `SELECT COUNT(DISTINCT CASE WHEN lock_mode LIKE '%REC_NOT_GAP' AND index_name = 'PRIMARY' THEN lock_data END) AS locked,
  COUNT(CASE WHEN lock_mode NOT LIKE '%REC_NOT_GAP' THEN 1 END) AS gaps
FROM performance_schema.data_locks
WHERE object_schema = DATABASE() AND object_name = 'queue_job' AND lock_type = 'RECORD'`
	if maria {
		text = `SELECT trx_rows_locked AS locked, 0 AS gaps FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = CONNECTION_ID()`
	}
	var out []struct {
		Locked int `db:"locked"`
		Gaps   int `db:"gaps"`
	}
	if err := s.Select(context.Background(), &out, text, nil); err != nil || len(out) != 1 {
		t.Fatal(out, err)
	}
	return out[0].Locked, out[0].Gaps
}

// TestIsolation: whatever the session's default, each transaction of the
// library's own that changes anything runs at READ COMMITTED.
func TestIsolation(t *testing.T) {
	for _, level := range []string{"SERIALIZABLE", "READ-COMMITTED"} {
		t.Run(level, func(t *testing.T) {
			cfg, err := driver.ParseDSN(testserver.MySQL(t).NewDatabase(t))
			if err != nil {
				t.Fatal(err)
			}
			watch := openDB(t, cfg.FormatDSN())
			for _, text := range []string{
				`UPDATE performance_schema.setup_consumers SET enabled = 'YES' WHERE name LIKE 'events_transactions%'`,
				`UPDATE performance_schema.setup_instruments SET enabled = 'YES', timed = 'YES' WHERE name = 'transaction'`,
			} {
				if _, err := watch.Exec(text); err != nil {
					testserver.Skip(t, "mysql", fmt.Sprintf("this role may not watch transactions, which takes UPDATE on performance_schema: %v", err))
				}
			}
			cfg.Params = map[string]string{"transaction_isolation": "'" + level + "'"}
			db := openDB(t, cfg.FormatDSN())
			db.SetMaxOpenConns(1)
			q, err := queue.New(db, Dialect{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			ctx := t.Context()
			if err := q.Migrate(ctx); err != nil {
				t.Fatal(err)
			}
			var thread int
			if err := db.QueryRow(`SELECT PS_CURRENT_THREAD_ID()`).Scan(&thread); err != nil {
				t.Fatal(err)
			}
			look := func(after string) {
				rows, err := watch.Query(`SELECT isolation_level, access_mode, autocommit FROM performance_schema.events_transactions_history
WHERE thread_id = ? AND isolation_level <> 'READ COMMITTED' AND number_of_savepoints >= 0 AND autocommit = 'NO'`, thread)
				if err != nil {
					t.Fatal(err)
				}
				defer rows.Close()
				for rows.Next() {
					var isolation, mode, auto string
					if err := rows.Scan(&isolation, &mode, &auto); err != nil {
						t.Fatal(err)
					}
					t.Errorf("after %s: a transaction at %s, %s, autocommit %s", after, isolation, mode, auto)
				}
			}
			if _, err := watch.Exec(`TRUNCATE performance_schema.events_transactions_history`); err != nil {
				t.Fatal(err)
			}
			fill(t, q, 300)
			look("a push")
			jobs, err := q.Pop(ctx, 10, nil)
			if err != nil || len(jobs) != 10 {
				t.Fatal(len(jobs), err)
			}
			look("a pop")
			for _, c := range []struct {
				name string
				call func() error
			}{
				{"an ack of one", func() error { return q.Ack(ctx, jobs[0]) }},
				{"an ack of many", func() error { return q.Ack(ctx, jobs[1:4]...) }},
				{"a failure", func() error { return q.Fail(ctx, jobs[4], errUndo, nil) }},
				{"a death", func() error { return q.Fail(ctx, jobs[5], errUndo, &queue.FailOptions{Dead: true}) }},
				{"an extension", func() error { return q.Extend(ctx, time.Minute, jobs[6:]...) }},
				{"a release", func() error { return q.Release(ctx, jobs[6:]...) }},
				{"a pause", func() error { return q.Pause(ctx, "q") }},
				{"a redrive", func() error { _, _, err := q.Redrive(ctx, queue.Redrive{}); return err }},
				{"a purge", func() error { _, err := q.Purge(ctx, queue.Purge{}); return err }},
			} {
				if err := c.call(); err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				look(c.name)
			}
		})
	}
}
