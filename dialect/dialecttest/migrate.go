package dialecttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
)

func init() {
	add("migrate: twice changes nothing", migrateTwice)
	add("migrate: 50 processes at once", migrateMany)
	add("migrate: the statements of Schema, run by hand", migrateByHand)
	add("schema: missing, in clear words", schemaMissing)
	add("schema: too old and too new", schemaVersions)
	add("namespace: a prefix and a schema of the user's", namespaceNames)
	add("namespace: two in one database do not see each other", namespaceTwo)
	add("namespace: hostile names are refused", namespaceHostile)
}

// bare is a fixture without a schema.
func bare(t *testing.T, e Engine) *fixture {
	t.Helper()
	f := &fixture{T: t, e: e, dsn: e.NewDatabase(t), log: &logBuffer{}}
	var cancel context.CancelFunc
	f.ctx, cancel = context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	f.db = f.open(f.dsn)
	f.q = f.queue(f.db, nil)
	return f
}

// works runs a job through a queue.
func (f *fixture) works(q *queue.Queue) {
	f.Helper()
	p := must(q.Push(f.ctx, queue.NewJob{Queue: "works", Kind: "k", UniqueKey: "u", Payload: []byte("x")}))(f)
	same(f, "duplicate", p.Duplicate, false)
	jobs := must(q.Pop(f.ctx, 2, &queue.PopOptions{Queues: []string{"works"}}))(f)
	same(f, "popped", len(jobs), 1)
	same(f, "id", jobs[0].ID, p.ID)
	f.must(q.Fail(f.ctx, jobs[0], errBoom, &queue.FailOptions{Dead: true}))
	n, _, err := q.Redrive(f.ctx, queue.Redrive{ID: p.ID})
	f.must(err)
	same(f, "redriven", n, 1)
	f.must(q.Ack(f.ctx, must(q.PopID(f.ctx, p.ID, 0))(f)))
	same(f, "stats", must(q.Stats(f.ctx, "works"))(f), queue.Stats{Queue: "works"})
}

func migrateTwice(t *testing.T, e Engine) {
	f := start(t, e, nil)
	pushed := f.push(jobs(3)...)
	held := f.popOne()
	for _, q := range []*queue.Queue{f.q, f.other(nil)} {
		f.must(q.Migrate(f.ctx))
		f.wantStats(2, 0, 1, 0)
	}
	f.must(f.q.Ack(f.ctx, held))
	sameList(f, "popped", ids(f.pop(5)), pushedIDs(pushed[1:]))
	engine, version, err := f.q.Server(f.ctx)
	f.must(err)
	if engine == "" || version == "" {
		t.Fatalf("the server is %q, version %q", engine, version)
	}
}

func migrateMany(t *testing.T, e Engine) {
	f := bare(t, e)
	var wg sync.WaitGroup
	errs := make([]error, 50)
	queues := make([]*queue.Queue, len(errs))
	for i := range errs {
		db := f.open(f.dsn)
		db.SetMaxOpenConns(1)
		queues[i] = f.queue(db, nil)
	}
	for i, q := range queues {
		wg.Go(func() {
			errs[i] = q.Migrate(f.ctx)
			if errs[i] == nil {
				_, errs[i] = q.Push(f.ctx, job("x"))
			}
		})
	}
	wg.Wait()
	f.must(errors.Join(errs...))
	f.wantStats(int64(len(errs)), 0, 0, 0)
	same(f, "popped", len(f.pop(100)), len(errs))
}

func migrateByHand(t *testing.T, e Engine) {
	f := bare(t, e)
	console := f.db
	if e.ScriptDSN != nil {
		console = f.open(e.ScriptDSN(f.dsn))
	}
	for _, opts := range []*queue.Options{nil, {Prefix: "by_hand_"}} {
		q := f.queue(f.db, opts)
		text := q.Schema()
		if _, err := console.ExecContext(f.ctx, text); err != nil {
			f.Fatalf("%s: %v", text, err)
		}
		f.works(q)
		f.must(q.Migrate(f.ctx)) // nothing is left to do
		f.works(q)
		same(f, "the text, again", q.Schema(), text)
	}
}

func schemaMissing(t *testing.T, e Engine) {
	f := bare(t, e)
	q := f.q
	tx := f.begin()
	_, err := q.PushTx(f.ctx, tx, job("x"))
	f.wantErr("PushTx", err, queue.ErrSchemaMissing)
	f.must(tx.Rollback())
	for name, call := range map[string]func() error{
		"Push":   func() error { _, err := q.Push(f.ctx, job("x")); return err },
		"Pop":    func() error { _, err := q.Pop(f.ctx, 1, nil); return err },
		"Get":    func() error { _, err := q.Get(f.ctx, 1); return err },
		"Stats":  func() error { _, err := q.Stats(f.ctx, "q"); return err },
		"Purge":  func() error { _, err := q.Purge(f.ctx, queue.Purge{}); return err },
		"Pause":  func() error { return q.Pause(f.ctx, "q") },
		"Server": func() error { _, _, err := q.Server(f.ctx); return err },
		"Jobs": func() error {
			for _, err := range q.Jobs(f.ctx, queue.Filter{}) {
				return err
			}
			return nil
		},
	} {
		err := call()
		f.wantErr(name, err, queue.ErrSchemaMissing)
		if text := err.Error(); !strings.Contains(text, "Migrate") || !strings.Contains(text, "Schema") {
			t.Fatalf("%s: %q does not say what to do", name, text)
		}
	}
	// The same Queue goes on once the schema is there, whoever made it.
	f.must(f.other(nil).Migrate(f.ctx))
	f.works(q)
}

func schemaVersions(t *testing.T, e Engine) {
	f := start(t, e, nil)
	engine := must(e.Dialect.Open(dialect.Namespace{}))(f)
	m := engine.Migrations()
	code := m[len(m)-1].Version
	set := func(version, minCode int) {
		_, err := f.session().Run(f.ctx, f.statements().SetVersion, dialect.Params{"version": version, "min_code": minCode})
		f.must(err)
	}
	f.push(job("x"))
	f.must(f.q.Ack(f.ctx, f.popOne()))

	set(code-1, 0)
	old := f.other(nil)
	_, err := old.Push(f.ctx, job("x"))
	f.wantErr("an old schema", err, queue.ErrSchemaOld)
	if text := err.Error(); !strings.Contains(text, "Migrate") || !strings.Contains(text, fmt.Sprint("version ", code-1)) {
		t.Fatalf("%q does not say what to do", text)
	}
	tx := f.begin()
	_, err = old.PushTx(f.ctx, tx, job("x"))
	f.wantErr("an old schema, in a transaction", err, queue.ErrSchemaOld)
	f.must(tx.Rollback())

	// Newer code has been here, and still serves ours.
	set(code+7, code)
	newer := f.other(nil)
	f.works(newer)
	f.must(newer.Migrate(f.ctx))
	f.works(old) // which met another schema before

	set(code+7, code+1)
	late := f.other(nil)
	_, err = late.Pop(f.ctx, 1, nil)
	f.wantErr("a schema that serves us no more", err, queue.ErrSchemaNew)
	if text := err.Error(); !strings.Contains(text, "update") || !strings.Contains(text, fmt.Sprint("version ", code+7)) {
		t.Fatalf("%q does not say what to do", text)
	}
	f.must(late.Migrate(f.ctx)) // it never goes back
	_, err = late.Pop(f.ctx, 1, nil)
	f.wantErr("after Migrate", err, queue.ErrSchemaNew)
	f.wantStats(0, 0, 0, 0)
}

func namespaceNames(t *testing.T, e Engine) {
	f := bare(t, e)
	longest := strings.Repeat("a", 30)
	for _, opts := range []queue.Options{
		{Prefix: "jobs_"}, {Prefix: "_"}, {Prefix: "x"}, {Prefix: longest}, {Prefix: "select"}, {Prefix: "a1_b2"},
		{Schema: "tenant_1"}, {Schema: "tenant_1", Prefix: "q"}, {Schema: longest, Prefix: longest}, {Schema: "select"},
	} {
		q := f.queue(f.db, &opts)
		err := q.Migrate(f.ctx)
		if opts.Schema != "" && errors.Is(err, queue.ErrServer) {
			t.Logf("schema %s: %v", opts.Schema, err) // an engine may not be able to make one
			continue
		}
		f.must(err)
		f.works(q)
		f.works(f.queue(f.open(f.dsn), &opts)) // another process finds it
	}
}

func namespaceTwo(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Node: "me"})
	two := f.queue(f.db, &queue.Options{Node: "me", Prefix: "two_"})
	f.must(two.Migrate(f.ctx))
	mine := f.push(keyed("u"), job("mine"))
	opts := &queue.PushOptions{PushID: "id"}
	must(f.q.PushMany(f.ctx, jobs(1), opts))(f)

	same(f, "stats there", must(two.Stats(f.ctx, "q"))(f), queue.Stats{Queue: "q"})
	sameList(f, "queues there", must(two.Queues(f.ctx))(f), nil)
	same(f, "popped there", len(must(two.Pop(f.ctx, 10, nil))(f)), 0)
	_, err := two.Get(f.ctx, mine[0].ID)
	f.wantErr("Get", err, queue.ErrNotFound)
	f.wantErr("Cancel", two.Cancel(f.ctx, mine[0].ID), queue.ErrNotFound)
	f.must(two.Pause(f.ctx, "q"))
	held := f.pop(3)
	same(f, "popped here", len(held), 3)
	same(f, "paused here", f.stats().Paused, false)

	// The same key, push id and node name are free there.
	theirs := must(two.PushMany(f.ctx, []queue.NewJob{keyed("u"), job("theirs")}, opts))(f)
	same(f, "duplicate there", theirs[0].Duplicate, false)
	f.must(two.Resume(f.ctx, "q"))
	got := must(two.Pop(f.ctx, 10, nil))(f)
	same(f, "popped there", len(got), 2)
	same(f, "requeued there", must(two.RequeueNode(f.ctx, "me"))(f), 2)
	f.wantStats(0, 0, 3, 0)
	f.must(f.q.Ack(f.ctx, held...))
	same(f, "ready there", must(two.Stats(f.ctx, "q"))(f).Ready, 2)
	f.wantErr("my queue, their job", f.q.Cancel(f.ctx, theirs[1].ID), queue.ErrNotFound)
}

func namespaceHostile(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(job("x"))
	for _, name := range []string{
		`"`, `a"b`, `a'b`, "a b", "a-b", "a.b", `a\b`, "a;b", "a\x00b", "A", "é", "1a", strings.Repeat("a", 31), "{job}", "$1", " ", ":a", "?", "a\nb",
		`x"; DROP TABLE queue_job; --`, "\xff",
	} {
		_, err := queue.New(f.db, e.Dialect, &queue.Options{Prefix: name})
		f.wantInvalid(fmt.Sprintf("prefix %q", name), err, "Options.Prefix")
		_, err = queue.New(f.db, e.Dialect, &queue.Options{Schema: name})
		f.wantInvalid(fmt.Sprintf("schema %q", name), err, "Options.Schema")
	}
	f.wantStats(1, 0, 0, 0)
}
