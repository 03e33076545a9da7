package dialecttest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sqlqueue/queue"
)

func init() {
	add("fail: when the next attempt is due", failRetry)
	add("fail: the errors of each attempt", failErrors)
	add("fail: the history is bounded", failHistory)
	add("fail: the last attempt, and for good", failDead)
	add("fail: many, each for itself", failMany)
}

func failRetry(t *testing.T, e Engine) {
	var asked []int
	f := start(t, e, &queue.Options{Backoff: func(attempt int) time.Duration {
		asked = append(asked, attempt)
		return []time.Duration{7 * time.Minute, -time.Second, 1 << 62}[attempt-1]
	}})
	id := f.push(queue.NewJob{Queue: "q", Kind: "k"})[0].ID

	// wantIn fails the job and ends the test unless it is then due in d.
	wantIn := func(d time.Duration, opts *queue.FailOptions) {
		f.Helper()
		j := must(f.q.PopID(f.ctx, id, time.Minute))(f)
		before := f.now()
		f.must(f.q.Fail(f.ctx, j, errBoom, opts))
		after := f.now()
		info := f.info(id)
		if r := info.RunAt; r.Before(before.Add(d)) || r.After(after.Add(d)) {
			t.Fatalf("due at %v, want %v after %v to %v", r, d, before, after)
		}
		same(f, "leased until", info.LeasedUntil, time.Time{})
		same(f, "node", info.Node, "")
		same(f, "attempt", info.Attempt, j.Attempt)
		want := queue.Delayed
		if d == 0 {
			want = queue.Ready
		}
		same(f, "state", info.State, want)
	}
	wantIn(7*time.Minute, nil)
	wantIn(0, &queue.FailOptions{})
	wantIn(queue.MaxDelay, &queue.FailOptions{})
	wantIn(0, &queue.FailOptions{RetryIn: -1})
	wantIn(time.Hour, &queue.FailOptions{RetryIn: time.Hour})
	wantIn(queue.MaxDelay, &queue.FailOptions{RetryIn: queue.MaxDelay})
	sameList(f, "Backoff was asked for the attempts", asked, []int{1, 2, 3})
	f.wantStats(0, 1, 0, 0)

	j := must(f.q.PopID(f.ctx, id, time.Minute))(f)
	f.wantInvalid("beyond the limit", f.q.Fail(f.ctx, j, errBoom, &queue.FailOptions{RetryIn: queue.MaxDelay + 1}), "FailOptions.RetryIn")
	f.wantState(id, queue.Running)

	// A retry is never before it is due, and is found when it is.
	f.must(f.q.Fail(f.ctx, j, errBoom, &queue.FailOptions{RetryIn: 300 * time.Millisecond}))
	f.wantDue(f.wantState(id, queue.Delayed), 300*time.Millisecond)

	// The default: 1 s, 2 s, 4 s, … and a quarter more or less.
	q := f.other(nil)
	p := must(q.Push(f.ctx, job("x")))(f)
	for attempt, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		j := must(q.PopID(f.ctx, p.ID, time.Minute))(f)
		before := f.now()
		f.must(q.Fail(f.ctx, j, errBoom, nil))
		if d := f.info(p.ID).RunAt.Sub(before); d < want*3/4 || d > want*5/4+5*time.Second {
			t.Fatalf("attempt %d is tried again after %v, want about %v", attempt+1, d, want)
		}
	}
}

func failErrors(t *testing.T, e Engine) {
	f := start(t, e, nil)
	out := f.other(&queue.Options{Node: "node two"})
	id := f.push(job("x"))[0].ID
	var times []time.Time
	for i, text := range []string{"first", "second", ""} {
		q := f.q
		if i == 1 {
			q = out
		}
		j := f.popSoon(q, 1)[0]
		same(f, "errors so far", len(j.Errors), i)
		var err error
		if text != "" {
			err = errors.New(text)
		}
		times = append(times, f.now())
		f.must(q.Fail(f.ctx, j, err, &queue.FailOptions{RetryIn: -1}))
	}
	times = append(times, f.now())
	check := func(errs []queue.AttemptError) {
		f.Helper()
		same(f, "errors", len(errs), 3)
		for i, e := range errs {
			same(f, "attempt", e.Attempt, i+1)
			want := []string{"first", "second", "failed, without an error"}[i]
			same(f, "text", e.Error, want)
			node := f.q.Node()
			if i == 1 {
				node = "node two"
			}
			same(f, "node", e.Node, node)
			// By the database's clock, to a millisecond or so.
			if e.At.Before(times[i].Add(-10*time.Millisecond)) || e.At.After(times[i+1].Add(10*time.Millisecond)) {
				t.Fatalf("attempt %d failed at %v, want between %v and %v", i+1, e.At, times[i], times[i+1])
			}
		}
	}
	check(f.info(id).Errors)
	j := f.popOne()
	check(j.Errors)
	same(f, "failed", f.q.Counters().Failed, 2)
	same(f, "failed by the other", out.Counters().Failed, 1)

	// An ack that is kept keeps them, too.
	f.must(f.q.Configure(f.ctx, "q", queue.Settings{KeepFinished: ptr(1)}))
	f.must(f.q.Ack(f.ctx, j))
	check(f.wantState(id, queue.Done).Errors)
}

func failHistory(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const attempts = queue.MaxErrors + 5
	id := f.push(queue.NewJob{Queue: "q", Kind: "k", MaxAttempts: attempts})[0].ID
	long := strings.Repeat("é", queue.MaxErrorBytes) // twice the limit, and cut within a rune or not
	for i := 1; i <= attempts; i++ {
		j := must(f.q.PopID(f.ctx, id, time.Minute))(f)
		same(f, "attempt", j.Attempt, i)
		same(f, "errors", len(j.Errors), min(i-1, queue.MaxErrors))
		text := fmt.Sprint(i)
		if i == attempts-1 {
			text = "x" + long
		}
		f.must(f.q.Fail(f.ctx, j, errors.New(text), &queue.FailOptions{RetryIn: -1}))
	}
	info := f.wantState(id, queue.Dead)
	same(f, "attempts", info.Attempt, attempts)
	same(f, "errors", len(info.Errors), queue.MaxErrors)
	for i, e := range info.Errors {
		attempt := attempts - queue.MaxErrors + 1 + i
		same(f, "attempt", e.Attempt, attempt)
		if attempt != attempts-1 {
			same(f, "text", e.Error, fmt.Sprint(attempt))
			continue
		}
		kept, _, cut := strings.Cut(e.Error, "… (")
		if !cut || !strings.HasPrefix("x"+long, kept) || len(kept) < queue.MaxErrorBytes-3 || len(kept) > queue.MaxErrorBytes || !utf8.ValidString(e.Error) {
			t.Fatalf("a text of %d bytes was kept as %d bytes: …%q", len(long)+1, len(e.Error), e.Error[max(0, len(e.Error)-40):])
		}
	}
}

func failDead(t *testing.T, e Engine) {
	f := start(t, e, nil)
	pushed := f.push(
		queue.NewJob{Queue: "q", Kind: "k", MaxAttempts: 1, Payload: []byte("once"), Priority: 3, Headers: map[string]string{"a": "b"}, Lease: time.Hour, UniqueKey: "u"},
		queue.NewJob{Queue: "q", Kind: "k", MaxAttempts: 2, Payload: []byte("twice")},
		queue.NewJob{Queue: "q", Kind: "k", Payload: []byte("for good")},
	)
	got := inOrder(pushed, f.pop(3))
	before := f.now()
	f.must(f.q.Fail(f.ctx, got[0], errBoom, &queue.FailOptions{RetryIn: time.Hour}))
	after := f.now()
	f.must(f.q.Fail(f.ctx, got[1], errBoom, &queue.FailOptions{RetryIn: -1}))
	f.must(f.q.Fail(f.ctx, got[2], errBoom, &queue.FailOptions{Dead: true, RetryIn: time.Hour}))
	f.wantStats(1, 0, 0, 2)

	info := f.wantState(pushed[0].ID, queue.Dead)
	same(f, "queue", info.Queue, "q")
	same(f, "kind", info.Kind, "k")
	same(f, "payload", string(info.Payload), "once")
	same(f, "priority", info.Priority, 3)
	same(f, "attempt", info.Attempt, 1)
	same(f, "max attempts", info.MaxAttempts, 1)
	same(f, "header", info.Headers["a"], "b")
	same(f, "unique key", info.UniqueKey, "u")
	same(f, "node", info.Node, f.q.Node())
	same(f, "created at", info.CreatedAt, got[0].CreatedAt)
	same(f, "run at", info.RunAt, time.Time{})
	same(f, "leased until", info.LeasedUntil, time.Time{})
	if info.FinishedAt.Before(before) || info.FinishedAt.After(after) {
		t.Fatalf("finished at %v, want between %v and %v", info.FinishedAt, before, after)
	}
	same(f, "errors", len(info.Errors), 1)
	same(f, "error", info.Errors[0].Error, "boom")
	same(f, "max attempts of the third", f.wantState(pushed[2].ID, queue.Dead).MaxAttempts, 10)

	j := f.popOne()
	same(f, "attempt", j.Attempt, 2)
	f.must(f.q.Fail(f.ctx, j, errors.New("worse"), &queue.FailOptions{RetryIn: -1}))
	info = f.wantState(pushed[1].ID, queue.Dead)
	same(f, "errors", len(info.Errors), 2)
	same(f, "the last error", info.Errors[1].Error, "worse")
	f.popNone()
	f.wantStats(0, 0, 0, 3)
	for _, j := range got {
		f.wantErr("an ack of the dead", f.q.Ack(f.ctx, j), queue.ErrLeaseLost)
	}
	f.wantStats(0, 0, 0, 3)
}

func failMany(t *testing.T, e Engine) {
	f := start(t, e, nil)
	pushed := f.push(jobs(6)...)
	got := append(f.pop(4), f.pop(2)...)
	f.must(f.q.Ack(f.ctx, got[4]))
	f.must(f.q.FailMany(f.ctx, nil))
	err := f.q.FailMany(f.ctx, []queue.Failure{
		{Job: got[0], Err: errors.New("none"), FailOptions: queue.FailOptions{RetryIn: -1}},
		{Job: got[1], Err: errors.New("one"), FailOptions: queue.FailOptions{RetryIn: time.Hour}},
		{Job: got[2], Err: errors.New("two"), FailOptions: queue.FailOptions{Dead: true}},
		{Job: got[4], Err: errors.New("lost")},
		{Job: got[3], Err: errors.New("three"), FailOptions: queue.FailOptions{RetryIn: 2 * time.Hour}},
		{Job: got[5], Err: errors.New("five"), FailOptions: queue.FailOptions{Dead: true}},
	})
	f.wantBatch("mixed", err, nil, nil, nil, queue.ErrLeaseLost, nil, nil)
	f.wantStats(1, 2, 0, 2)
	for i, want := range map[int]struct {
		state queue.State
		text  string
	}{0: {queue.Ready, "none"}, 1: {queue.Delayed, "one"}, 2: {queue.Dead, "two"}, 3: {queue.Delayed, "three"}, 5: {queue.Dead, "five"}} {
		info := f.wantState(pushed[i].ID, want.state)
		same(f, "errors", len(info.Errors), 1)
		same(f, "error", info.Errors[0].Error, want.text)
	}
	now := f.now()
	for i, want := range map[int]time.Duration{1: time.Hour, 3: 2 * time.Hour} {
		if d := f.info(pushed[i].ID).RunAt.Sub(now); d > want || d < want-time.Minute {
			t.Fatalf("job %d is due in %v, want %v", i, d, want)
		}
	}
	same(f, "failed", f.q.Counters().Failed, 5)
}
