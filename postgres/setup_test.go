package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
	"github.com/sqlqueue/queue/internal/testserver"
	"github.com/sqlqueue/queue/postgres"
)

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(4)
	t.Cleanup(func() { db.Close() })
	return db
}

func newQueue(t *testing.T, db *sql.DB, opts *queue.Options) *queue.Queue {
	t.Helper()
	q, err := queue.New(db, postgres.Dialect{}, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func exec(t *testing.T, db *sql.DB, text string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// everything makes each of the library's writes, and its reads, once.
func everything(t *testing.T, q *queue.Queue) {
	t.Helper()
	ctx := t.Context()
	keep, shards := 1, 3
	must(t, q.Configure(ctx, "q", queue.Settings{KeepFinished: &keep, Shards: &shards}))
	jobs := make([]queue.NewJob, 3000)
	for i := range jobs {
		jobs[i] = queue.NewJob{Queue: "q", Kind: "k", Priority: i % 2}
	}
	_, err := q.PushMany(ctx, jobs[:2600], &queue.PushOptions{PushID: "id"})
	must(t, err)
	_, err = q.PushMany(ctx, jobs, nil)
	must(t, err)
	one, err := q.Push(ctx, queue.NewJob{Queue: "q", Kind: "k", UniqueKey: "u", Delay: time.Hour})
	must(t, err)
	got, err := q.Pop(ctx, 8, nil)
	must(t, err)
	must(t, q.Extend(ctx, time.Minute, got...))
	must(t, q.Ack(ctx, got[0], got[1]))
	must(t, q.Release(ctx, got[2]))
	must(t, q.FailMany(ctx, []queue.Failure{{Job: got[3]}, {Job: got[4], FailOptions: queue.FailOptions{Dead: true}}}))
	_, err = q.RequeueNode(ctx, q.Node())
	must(t, err)
	held, err := q.PopID(ctx, one.ID, time.Minute)
	must(t, err)
	must(t, q.Fail(ctx, held, nil, &queue.FailOptions{RetryIn: time.Hour}))
	must(t, q.Reschedule(ctx, one.ID, time.Minute))
	must(t, q.Reprioritize(ctx, one.ID, 5))
	must(t, q.Cancel(ctx, one.ID))
	must(t, q.Pause(ctx, "q"))
	must(t, q.Resume(ctx, "q"))
	n, _, err := q.Redrive(ctx, queue.Redrive{})
	must(t, err)
	if n != 1 {
		t.Fatalf("redriven %d, want 1", n)
	}
	purged, err := q.Purge(ctx, queue.Purge{})
	must(t, err)
	if purged != 3 {
		t.Fatalf("purged %d, want 3", purged)
	}
	st, err := q.Stats(ctx, "q")
	must(t, err)
	if st.Running != 0 || st.Dead != 0 || st.Delayed != 1 {
		t.Fatalf("stats are %+v", st)
	}
	_, err = q.Peek(ctx, "q", 1)
	must(t, err)
}

// TestIsolation holds each of the library's own writes to READ COMMITTED: a
// trigger on every table refuses any other level.
func TestIsolation(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t).NewDatabase(t)
	db := open(t, dsn)
	must(t, newQueue(t, db, nil).Migrate(t.Context()))
	exec(t, db, `CREATE FUNCTION only_read_committed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION '% of % at %', TG_OP, TG_TABLE_NAME, current_setting('transaction_isolation');
  END IF;
  RETURN NULL;
END $$`)
	rows, err := db.QueryContext(t.Context(), `SELECT tablename FROM pg_tables WHERE schemaname = 'public'`)
	must(t, err)
	var tables []string
	for rows.Next() {
		var name string
		must(t, rows.Scan(&name))
		tables = append(tables, name)
	}
	must(t, rows.Err())
	if len(tables) < 8 {
		t.Fatalf("found only the tables %q", tables)
	}
	for _, name := range tables {
		exec(t, db, `CREATE TRIGGER only_read_committed BEFORE INSERT OR UPDATE OR DELETE ON "`+name+`" EXECUTE FUNCTION only_read_committed()`)
	}
	for _, level := range []string{"serializable", "repeatable%20read", "read%20committed"} {
		q := newQueue(t, open(t, with(dsn, "default_transaction_isolation="+level)), nil)
		everything(t, q)
		exec(t, db, `TRUNCATE queue_job, queue_key, queue_push, queue_archive, queue_lane, queue_node`)
	}
}

// TestPlainRole is what a team meets whose program may not create tables.
func TestPlainRole(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t).NewDatabase(t)
	db := open(t, dsn)
	role := fmt.Sprintf("queue_test_role_%08x", rand.Uint32())
	exec(t, db, `CREATE ROLE `+role+` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() {
		db.ExecContext(context.Background(), `DROP OWNED BY `+role)
		if _, err := db.ExecContext(context.Background(), `DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	exec(t, db, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`) // the default since PostgreSQL 15
	u, err := url.Parse(dsn)
	must(t, err)
	u.User = url.UserPassword(role, "secret")
	plain := newQueue(t, open(t, u.String()), nil)

	err = plain.Migrate(t.Context())
	if err == nil || !strings.Contains(err.Error(), "DBA") || !strings.Contains(err.Error(), "Schema") {
		t.Fatalf("Migrate: %v does not say what to do", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Fatalf("Migrate: %v shows the password", err)
	}
	if _, err := plain.Push(t.Context(), queue.NewJob{Queue: "q", Kind: "k"}); !errors.Is(err, queue.ErrSchemaMissing) {
		t.Fatalf("Push without a schema: %v", err)
	}
	exec(t, db, plain.Schema()) // by the DBA
	if _, err := plain.Push(t.Context(), queue.NewJob{Queue: "q", Kind: "k"}); err == nil || !strings.Contains(err.Error(), "privilege") {
		t.Fatalf("Push without privileges: %v", err)
	}
	exec(t, db, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO `+role)
	exec(t, db, `GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO `+role)
	must(t, plain.Migrate(t.Context())) // nothing to do
	everything(t, plain)
}

// TestMigrateWaits: the lock of another process's migration may be held for
// longer than the session's time-outs, and a context ends the wait.
func TestMigrateWaits(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t).NewDatabase(t)
	db := open(t, dsn)
	e, err := postgres.Dialect{}.Open(dialect.Namespace{})
	must(t, err)
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	defer tx.Rollback()
	_, err = tx.ExecContext(t.Context(), e.Statements().LockMigration)
	must(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	before := time.Now()
	err = newQueue(t, open(t, dsn), nil).Migrate(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Migrate: %v, want that the context ended", err)
	}
	if d := time.Since(before); d > 10*time.Second {
		t.Fatalf("the context ended the wait only after %v", d)
	}

	done := make(chan error, 3)
	for _, params := range []string{"statement_timeout=300", "lock_timeout=300", "idle_in_transaction_session_timeout=300"} {
		q := newQueue(t, open(t, with(dsn, params)), nil)
		go func() { done <- q.Migrate(t.Context()) }()
	}
	time.Sleep(900 * time.Millisecond)
	must(t, tx.Rollback())
	for range 3 {
		must(t, <-done)
	}
	everything(t, newQueue(t, db, nil))
}

// TestReadOnly: a server or a session that takes no writes is refused in clear
// words before anything else.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t).NewDatabase(t)
	q := newQueue(t, open(t, with(dsn, "default_transaction_read_only=on")), nil)
	for _, err := range []error{q.Migrate(t.Context()), func() error {
		_, err := q.Pop(t.Context(), 1, nil)
		return err
	}()} {
		if !errors.Is(err, queue.ErrServer) || !strings.Contains(err.Error(), "default_transaction_read_only") {
			t.Fatalf("got %v", err)
		}
	}
}

// TestEncoding: a database of another encoding keeps what it can hold, and
// refuses the rest before anything is stored.
func TestEncoding(t *testing.T) {
	t.Parallel()
	server := testserver.Postgres(t)
	admin := open(t, server.NewDatabase(t))
	name := fmt.Sprintf("queue_test_latin1_%08x", rand.Uint32())
	exec(t, admin, `CREATE DATABASE `+name+` ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0`)
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.Background(), `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(server.DSN)
	must(t, err)
	u.Path = "/" + name
	var log strings.Builder
	q := newQueue(t, open(t, u.String()), &queue.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx := t.Context()
	must(t, q.Migrate(ctx))
	if !strings.Contains(log.String(), "LATIN1") {
		t.Errorf("not warned about the encoding: %s", log.String())
	}
	everything(t, q)

	payload := "😀\x00\xff"
	p, err := q.Push(ctx, queue.NewJob{Queue: "café", Kind: "k", Payload: []byte(payload), Headers: map[string]string{"h": "é"}})
	must(t, err)
	info, err := q.Get(ctx, p.ID)
	must(t, err)
	if info.Queue != "café" || string(info.Payload) != payload || info.Headers["h"] != "é" {
		t.Fatalf("came back as %+v", info)
	}
	before, err := q.Stats(ctx, "café")
	must(t, err)
	for _, j := range []queue.NewJob{
		{Queue: "😀", Kind: "k"}, {Queue: "café", Kind: "日本"}, {Queue: "café", Kind: "k", UniqueKey: "日本"},
		{Queue: "café", Kind: "k", Headers: map[string]string{"h": "😀"}},
	} {
		if _, err := q.PushMany(ctx, []queue.NewJob{{Queue: "café", Kind: "k"}, j}, nil); err == nil || !strings.Contains(err.Error(), "LATIN1") {
			t.Errorf("%+v: %v", j, err)
		}
	}
	after, err := q.Stats(ctx, "café")
	must(t, err)
	if after.Ready != before.Ready {
		t.Errorf("%d jobs were stored", after.Ready-before.Ready)
	}
}
