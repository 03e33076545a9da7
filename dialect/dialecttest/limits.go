package dialecttest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("limits: of a new job", limitsPush)
	add("limits: of calls", limitsCalls)
	add("limits: of options", limitsOptions)
	add("limits: what is just within them", limitsWithin)
}

func limitsPush(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{MaxPayload: 100})
	year := func(y int) time.Time { return time.Date(y, 6, 1, 0, 0, 0, 0, time.UTC) }
	for _, c := range []struct {
		field string
		job   queue.NewJob
	}{
		{"NewJob.Queue", queue.NewJob{Kind: "k"}},
		{"NewJob.Kind", queue.NewJob{Queue: "q"}},
		{"NewJob.Queue", queue.NewJob{Queue: strings.Repeat("a", queue.MaxNameBytes+1), Kind: "k"}},
		{"NewJob.Kind", queue.NewJob{Queue: "q", Kind: strings.Repeat("a", queue.MaxNameBytes+1)}},
		{"NewJob.UniqueKey", keyed(strings.Repeat("a", queue.MaxKeyBytes+1))},
		{"NewJob.Payload", queue.NewJob{Queue: "q", Kind: "k", Payload: make([]byte, 101)}},
		{"NewJob.Headers", queue.NewJob{Queue: "q", Kind: "k", Headers: map[string]string{"a": strings.Repeat("a", queue.MaxHeaderBytes)}}},
		{"NewJob.Headers", queue.NewJob{Queue: "q", Kind: "k", Headers: map[string]string{"a": strings.Repeat("\x00", queue.MaxHeaderBytes/6)}}},
		{"NewJob.Priority", queue.NewJob{Queue: "q", Kind: "k", Priority: queue.MinPriority - 1}},
		{"NewJob.Priority", queue.NewJob{Queue: "q", Kind: "k", Priority: queue.MaxPriority + 1}},
		{"NewJob.Priority", queue.NewJob{Queue: "q", Kind: "k", Priority: 1 << 40}},
		{"NewJob.Delay", queue.NewJob{Queue: "q", Kind: "k", Delay: -1}},
		{"NewJob.Delay", queue.NewJob{Queue: "q", Kind: "k", Delay: queue.MaxDelay + 1}},
		{"NewJob.RunAt", queue.NewJob{Queue: "q", Kind: "k", Delay: 1, RunAt: year(2030)}},
		{"NewJob.RunAt", queue.NewJob{Queue: "q", Kind: "k", RunAt: year(1969)}},
		{"NewJob.RunAt", queue.NewJob{Queue: "q", Kind: "k", RunAt: year(9001)}},
		{"NewJob.RunAt", queue.NewJob{Queue: "q", Kind: "k", RunAt: year(300000)}},
		{"NewJob.MaxAttempts", queue.NewJob{Queue: "q", Kind: "k", MaxAttempts: -1}},
		{"NewJob.MaxAttempts", queue.NewJob{Queue: "q", Kind: "k", MaxAttempts: queue.MaxAttempts + 1}},
		{"NewJob.Lease", queue.NewJob{Queue: "q", Kind: "k", Lease: -time.Minute}},
		{"NewJob.Lease", queue.NewJob{Queue: "q", Kind: "k", Lease: queue.MinLease - 1}},
		{"NewJob.Lease", queue.NewJob{Queue: "q", Kind: "k", Lease: queue.MaxLease + 1}},
	} {
		what := fmt.Sprintf("%s of %.80s", c.field, fmt.Sprintf("%+v", c.job))
		_, err := f.q.Push(f.ctx, c.job)
		f.wantInvalid(what, err, c.field)
		_, err = f.q.PushMany(f.ctx, []queue.NewJob{job("fine"), c.job}, &queue.PushOptions{PushID: "id"})
		f.wantInvalid(what, err, "jobs[1]."+c.field)
		tx := f.begin()
		_, err = f.q.PushTx(f.ctx, tx, c.job)
		f.wantInvalid(what+", in a transaction", err, c.field)
		must(f.q.PushTx(f.ctx, tx, job("fine")))(f) // which is none the worse for it
		f.must(tx.Rollback())
		if strings.Contains(err.Error(), strings.Repeat("a", 100)) {
			t.Fatalf("%s: the error repeats the value: %v", what, err)
		}
	}
	_, err := f.q.PushMany(f.ctx, jobs(1), &queue.PushOptions{PushID: strings.Repeat("a", queue.MaxKeyBytes+1)})
	f.wantInvalid("a push id", err, "PushOptions.PushID")
	_, err = f.q.PushMany(f.ctx, jobs(queue.MaxPush+1), nil)
	f.wantInvalid("too many", err, "jobs")
	f.wantNothing("after all of this")
	// The push id was not used up.
	must(f.q.PushMany(f.ctx, jobs(2), &queue.PushOptions{PushID: "id"}))(f)
}

func limitsCalls(t *testing.T, e Engine) {
	f := start(t, e, nil)
	f.push(jobs(2)...)
	held := f.popOne()
	id := f.list(queue.Filter{States: []queue.State{queue.Ready}})[0].ID
	before := f.list(queue.Filter{})
	pop := func(n int, o queue.PopOptions) error { _, err := f.q.Pop(f.ctx, n, &o); return err }
	popID := func(lease time.Duration) error { _, err := f.q.PopID(f.ctx, id, lease); return err }
	peek := func(n int) error { _, err := f.q.Peek(f.ctx, "q", n); return err }
	for i, c := range []struct {
		field string
		err   error
	}{
		{"n", pop(0, queue.PopOptions{})},
		{"n", pop(-1, queue.PopOptions{})},
		{"n", pop(queue.MaxBatch+1, queue.PopOptions{})},
		{"PopOptions.Lease", pop(1, queue.PopOptions{Lease: -1})},
		{"PopOptions.Lease", pop(1, queue.PopOptions{Lease: queue.MinLease - 1})},
		{"PopOptions.Lease", pop(1, queue.PopOptions{Lease: queue.MaxLease + 1})},
		{"PopOptions.Queues", pop(1, queue.PopOptions{Queues: []string{""}})},
		{"PopOptions.Queues", pop(1, queue.PopOptions{Queues: slices.Repeat([]string{"a"}, queue.MaxPopQueues+1)})},
		{"lease", popID(-1)},
		{"lease", popID(queue.MaxLease + 1)},
		{"n", peek(0)},
		{"n", peek(queue.MaxBatch + 1)},
		{"d", f.q.Extend(f.ctx, 0, held)},
		{"d", f.q.Extend(f.ctx, -time.Hour, held)},
		{"d", f.q.Extend(f.ctx, queue.MaxLease+1, held)},
		{"jobs", f.q.Ack(f.ctx, slices.Repeat([]*queue.Job{held}, queue.MaxPush+1)...)},
		{"FailOptions.RetryIn", f.q.FailMany(f.ctx, []queue.Failure{{Job: held, FailOptions: queue.FailOptions{RetryIn: queue.MaxDelay + 1}}})},
		{"delay", f.q.Reschedule(f.ctx, id, -1)},
		{"delay", f.q.Reschedule(f.ctx, id, queue.MaxDelay+1)},
		{"at", f.q.RescheduleAt(f.ctx, id, time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC))},
		{"at", f.q.RescheduleAt(f.ctx, id, time.Date(9001, 6, 1, 0, 0, 0, 0, time.UTC))},
		{"priority", f.q.Reprioritize(f.ctx, id, queue.MaxPriority+1)},
		{"Settings.Shards", f.q.Configure(f.ctx, "new", queue.Settings{Shards: ptr(0)})},
		{"Settings.Shards", f.q.Configure(f.ctx, "new", queue.Settings{Shards: ptr(queue.MaxShards + 1)})},
		{"Settings.KeepFinished", f.q.Configure(f.ctx, "new", queue.Settings{KeepFinished: ptr(2)})},
		{"queue", f.q.Configure(f.ctx, "", queue.Settings{})},
		{"queue", f.q.Pause(f.ctx, strings.Repeat("a", queue.MaxNameBytes+1))},
	} {
		f.wantInvalid(fmt.Sprint("call ", i), c.err, c.field)
	}
	same(f, "jobs", fmt.Sprintf("%+v", f.list(queue.Filter{})), fmt.Sprintf("%+v", before))
	sameList(f, "queues", must(f.q.Queues(f.ctx))(f), []string{"q"})
	f.must(f.q.Ack(f.ctx, held))
}

func limitsOptions(t *testing.T, e Engine) {
	f := bare(t, e)
	for field, opts := range map[string][]queue.Options{
		"Options.Node":        {{Node: strings.Repeat("a", queue.MaxNameBytes+1)}, {Node: "a\nb"}},
		"Options.Shards":      {{Shards: -1}, {Shards: queue.MaxShards + 1}},
		"Options.MaxPayload":  {{MaxPayload: -1}, {MaxPayload: queue.MaxPushBytes + 1}},
		"Options.MaxAttempts": {{MaxAttempts: -1}, {MaxAttempts: queue.MaxAttempts + 1}},
		"Options.MaxBacklog":  {{MaxBacklog: -1}},
		"Options.RetryBudget": {{RetryBudget: -1}},
		"Options.PushIDLife":  {{PushIDLife: -1}, {PushIDLife: time.Second - 1}},
		"Options.Prefix":      {{Prefix: "x-y"}},
		"Options.Schema":      {{Schema: "x-y"}},
	} {
		for _, o := range opts {
			q, err := queue.New(f.db, e.Dialect, &o)
			f.wantInvalid(field, err, field)
			if q != nil {
				t.Fatalf("%s: New returned a queue besides the error", field)
			}
		}
	}
	// Several at once are all told.
	_, err := queue.New(f.db, e.Dialect, &queue.Options{Shards: -1, MaxPayload: -1})
	for _, field := range []string{"Options.Shards", "Options.MaxPayload"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Fatalf("the error %v does not name %s", err, field)
		}
	}
	_, err = queue.New(nil, e.Dialect, nil)
	f.wantInvalid("no pool", err, "db")
	_, err = queue.New(f.db, nil, nil)
	f.wantInvalid("no dialect", err, "d")
}

func limitsWithin(t *testing.T, e Engine) {
	f := start(t, e, &queue.Options{Node: strings.Repeat("n", queue.MaxNameBytes), Shards: queue.MaxShards, MaxAttempts: queue.MaxAttempts})
	name := strings.Repeat("é", queue.MaxNameBytes/2)
	key := strings.Repeat("k", queue.MaxKeyBytes)
	headers := map[string]string{"h": strings.Repeat("v", queue.MaxHeaderBytes-len(`{"h":""}`))}
	largest := queue.NewJob{
		Queue: name, Kind: name, UniqueKey: key, Headers: headers, Payload: make([]byte, queue.DefaultMaxPayload),
		Priority: queue.MaxPriority, MaxAttempts: queue.MaxAttempts, Lease: queue.MaxLease, Delay: queue.MaxDelay,
	}
	p := must(f.q.PushMany(f.ctx, []queue.NewJob{largest}, &queue.PushOptions{PushID: key}))(f)
	info := f.wantState(p[0].ID, queue.Delayed)
	same(f, "queue", info.Queue, name)
	same(f, "kind", info.Kind, name)
	same(f, "unique key", info.UniqueKey, key)
	same(f, "header", info.Headers["h"], headers["h"])
	same(f, "payload", len(info.Payload), queue.DefaultMaxPayload)
	same(f, "priority", info.Priority, queue.MaxPriority)
	same(f, "max attempts", info.MaxAttempts, queue.MaxAttempts)
	same(f, "due after", info.RunAt.Sub(info.CreatedAt), queue.MaxDelay)
	j := must(f.q.PopID(f.ctx, p[0].ID, queue.MinLease))(f)
	if left := j.Remaining(); left < queue.MaxLease-time.Minute {
		t.Fatalf("leased for %v, want the job's own %v", left, queue.MaxLease)
	}
	same(f, "node", f.info(j.ID).Node, f.q.Node())
	f.must(f.q.Extend(f.ctx, queue.MaxLease, j))
	f.must(f.q.Reschedule(f.ctx, f.push(job("x"))[0].ID, queue.MaxDelay))

	smallest := queue.NewJob{Queue: "s", Kind: "s", Priority: queue.MinPriority, MaxAttempts: 1, Lease: queue.MinLease, Delay: 1}
	p = f.push(smallest)
	var got []*queue.Job
	f.within(soon, "popped", func() bool { got = f.popFrom(queue.MaxBatch, "s"); return len(got) == 1 })
	same(f, "id", got[0].ID, p[0].ID)
	same(f, "popped from 10,000 names", len(f.popFrom(1, slices.Repeat([]string{"unknown"}, queue.MaxPopQueues)...)), 0)
}
