package dialecttest

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
)

func init() {
	add("faults: the connection breaks, before or after each step", brokenAnywhere)
	add("faults: the server cannot be reached", unreachable)
	add("faults: the context ends at each step", cancelledAnywhere)
	add("faults: what is refused for passing reasons is repeated", refusedThenDone)
	add("faults: what is refused for ever is shown in the end", refusedForEver)
	add("faults: a pop whose answer is lost", lostPop)
	add("faults: a job that cannot be decoded fails alone", damagedJob)
}

// maxSteps is more than any operation makes of the driver.
const maxSteps = 60

// warm lets a queue read what it reads but once, and sets the stage for all
// operations.
func warm(f *fixture, q *queue.Queue) {
	f.Helper()
	f.must(f.q.Configure(f.ctx, "kept", queue.Settings{KeepFinished: ptr(1)}))
	f.push(queue.NewJob{Queue: "kept", Kind: "k"}, queue.NewJob{Queue: "q", Kind: "k"}, queue.NewJob{Queue: "q", Kind: "k", Priority: 1})
	f.drain()
	_, err := q.Push(f.ctx, queue.NewJob{Queue: "warm", Kind: "warm"})
	f.must(err)
	f.within(time.Second, "the queue is warm", func() bool {
		jobs, err := q.Pop(f.ctx, 1, &queue.PopOptions{Queues: []string{"warm"}})
		f.must(err)
		f.must(q.Ack(f.ctx, jobs...))
		return len(jobs) == 1
	})
	time.Sleep(300 * time.Millisecond) // a catalog's life: it knows the settings
}

// brokenAnywhere breaks each operation's connection at each of its calls of the
// driver, before the call or after it. An operation that had come to its commit
// says that nobody knows; any other says what went wrong, and has left nothing.
func brokenAnywhere(t *testing.T, e Engine) {
	f := start(t, e, nil)
	db, d := f.faulty()
	q := f.queue(db, nil)
	warm(f, q)
	// Each as a driver may put it. ErrBadConn promises that nothing was done, and
	// database/sql then repeats what it can: never after a statement was sent.
	reset := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for _, fault := range []struct {
		name  string
		err   error
		after bool
	}{
		{"EOF after", io.EOF, true},
		{"reset after", reset, true},
		{"EOF before", io.ErrUnexpectedEOF, false},
		{"bad connection after a commit", driver.ErrBadConn, true},
	} {
		runs, unknown := 0, map[string]int{}
		for _, o := range operations {
			for step := range maxSteps {
				call, effect := o.prepare(f, fmt.Sprintf("%s, %s, %d", o.name, fault.name, step))
				if fault.after {
					// The catalog is fresh, so that each run takes the same steps.
					_, err := q.Queues(f.ctx)
					f.must(err)
				}
				n, hit := 0, driverCall{}
				d.inject(func(c driverCall) driverFault {
					if c.op == "connect" || fault.err == driver.ErrBadConn && c.op != "commit" {
						return driverFault{}
					}
					n++
					if n != step+1 {
						return driverFault{}
					}
					hit = c
					if fault.after {
						return driverFault{after: fault.err, broken: true}
					}
					return driverFault{before: fault.err, broken: true}
				})
				err := call(f.ctx, q)
				d.inject(nil)
				if hit.op == "" { // it has fewer steps
					if err != nil {
						t.Errorf("%s, not broken: %v", o.name, err)
					}
					break
				}
				runs++
				where := fmt.Sprintf("%s, %s, step %d (%s %.60q)", o.name, fault.name, step+1, hit.op, strings.Join(strings.Fields(hit.text), " "))
				became := effect()
				switch {
				case errors.Is(err, queue.ErrOutcomeUnknown):
					unknown[o.name]++
					// A statement that database/sql prepares again on a new connection looks
					// as if it had been sent.
					if !hit.commits() && hit.op != "prepare" {
						t.Errorf("%s: not yet at the commit, and yet %v", where, err)
					}
					if became != one(fault.after && hit.op != "prepare") {
						t.Errorf("%s: %v; the effect is %d", where, err, became)
					}
				case err == nil && became != 1, err != nil && became != 0:
					t.Errorf("%s: %v, and the effect is %d", where, err, became)
				case err != nil && !errors.Is(err, fault.err) && !errors.Is(err, driver.ErrBadConn):
					t.Errorf("%s: %v, which hides the cause", where, err)
				}
				o.settled(t, f, call, effect, became)
				if n := db.Stats().InUse; n != 0 {
					f.idle(db)
				}
			}
			if unknown[o.name] == 0 && fault.after && fault.err != driver.ErrBadConn {
				t.Errorf("%s, %s: never ErrOutcomeUnknown: proves nothing", o.name, fault.name)
			}
		}
		t.Logf("%s: %d runs, unknown %v", fault.name, runs, unknown)
	}
	f.idle(db)
}

// unreachable: where there is no connection nothing was done, and the error says
// no less.
func unreachable(t *testing.T, e Engine) {
	f := start(t, e, nil)
	db, d := f.faulty()
	q := f.queue(db, nil)
	warm(f, q)
	db.SetMaxIdleConns(-1)
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	calls := otherCalls(f)
	for _, o := range operations {
		call, effect := o.prepare(f, o.name)
		calls[o.name] = func(ctx context.Context, q *queue.Queue) error {
			err := call(ctx, q)
			if n := effect(); n != 0 {
				t.Errorf("%s: the effect is %d", o.name, n)
			}
			return err
		}
	}
	for name, call := range calls {
		d.inject(func(driverCall) driverFault { return driverFault{before: dial} })
		err := call(f.ctx, q)
		d.inject(nil)
		if !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, queue.ErrOutcomeUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// cancelledAnywhere ends the context of each operation at each of its calls of
// the driver. It is then done, or nothing of it is.
func cancelledAnywhere(t *testing.T, e Engine) {
	f := start(t, e, nil)
	db, d := f.faulty()
	q := f.queue(db, nil)
	warm(f, q)
	ended, runs := 0, 0
	for _, o := range operations {
		for step := range maxSteps {
			call, effect := o.prepare(f, fmt.Sprintf("%s, cancelled %d", o.name, step))
			ctx, cancel := context.WithCancel(f.ctx)
			n := 0
			d.inject(func(driverCall) driverFault {
				if n++; n == step+1 {
					cancel()
				}
				return driverFault{}
			})
			err := call(ctx, q)
			d.inject(nil)
			cancel()
			if n <= step {
				if err != nil {
					t.Errorf("%s, not cancelled: %v", o.name, err)
				}
				break
			}
			runs++
			f.idle(db) // what was under way is over, on the server, too
			became := effect()
			switch {
			case err == nil && became != 1:
				t.Errorf("%s, cancelled at step %d: no error, and the effect is %d", o.name, step+1, became)
			case became != 0 && became != 1:
				t.Errorf("%s, cancelled at step %d: %v: half done: %d", o.name, step+1, err, became)
			case err != nil && became == 1 && !errors.Is(err, queue.ErrOutcomeUnknown):
				t.Errorf("%s, cancelled at step %d: done, and the error is %v", o.name, step+1, err)
			}
			if err != nil {
				ended++
			}
			o.settled(t, f, call, effect, became)
		}
	}
	if runs < 3*len(operations) || ended < runs/4 {
		t.Errorf("%d of %d runs ended early: proves little", ended, runs)
	}
	t.Logf("%d of %d runs ended early", ended, runs)
}

// otherCalls are those that only read, or that give no plain effect.
func otherCalls(f *fixture) map[string]func(context.Context, *queue.Queue) error {
	id := f.push(job("to read"))[0].ID
	held := f.push(queue.NewJob{Queue: "held", Kind: "k"}, queue.NewJob{Queue: "held", Kind: "k"})
	lease, err := f.q.PopID(f.ctx, held[0].ID, time.Hour)
	f.must(err)
	f.push(queue.NewJob{Queue: "pop", Kind: "k"})
	return map[string]func(context.Context, *queue.Queue) error{
		"get":    func(ctx context.Context, q *queue.Queue) error { _, err := q.Get(ctx, id); return err },
		"peek":   func(ctx context.Context, q *queue.Queue) error { _, err := q.Peek(ctx, "q", 10); return err },
		"stats":  func(ctx context.Context, q *queue.Queue) error { _, err := q.Stats(ctx, "q"); return err },
		"queues": func(ctx context.Context, q *queue.Queue) error { _, err := q.Queues(ctx); return err },
		"extend": func(ctx context.Context, q *queue.Queue) error { return q.Extend(ctx, time.Hour, lease) },
		"jobs": func(ctx context.Context, q *queue.Queue) error {
			for _, err := range q.Jobs(ctx, queue.Filter{Queue: "q"}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"pop": func(ctx context.Context, q *queue.Queue) error {
			jobs, err := q.Pop(ctx, 1, &queue.PopOptions{Queues: []string{"pop"}})
			if err == nil {
				err = q.Release(ctx, jobs...)
			}
			return err
		},
		"pop id": func(ctx context.Context, q *queue.Queue) error {
			j, err := q.PopID(ctx, held[1].ID, time.Minute)
			if err == nil {
				err = q.Release(ctx, j)
			}
			return err
		},
		"requeue": func(ctx context.Context, q *queue.Queue) error {
			_, err := q.RequeueNode(ctx, q.Node())
			return err
		},
	}
}

func retries(q *queue.Queue, class dialect.Class) int64 {
	c := q.Counters()
	switch class {
	case dialect.Deadlock:
		return c.Retries.Deadlock
	case dialect.Serialization:
		return c.Retries.Serialization
	}
	return c.Retries.Busy
}

// refusedThenDone refuses each operation a few times, at each of its steps, with
// the engine's own errors. The caller sees nothing of it.
func refusedThenDone(t *testing.T, e Engine) {
	f := start(t, e, nil)
	refusals := e.Refusals(t, f.open(f.dsn))
	db, d := f.faulty()
	q := f.queue(db, nil)
	warm(f, q)
	const times = 2
	for class, refusal := range refusals {
		// refuse runs a call and refuses one step of it.
		refuse := func(name string, step int, call func(context.Context, *queue.Queue) error) (done bool) {
			n, left := 0, times
			before := retries(q, class)
			d.inject(func(c driverCall) driverFault {
				if c.op == "rollback" || c.op == "prepare" {
					return driverFault{}
				}
				if n++; n <= step || left == 0 {
					return driverFault{}
				}
				left--
				n = 0 // the next attempt has as many steps until there
				return driverFault{before: refusal}
			})
			err := call(f.ctx, q)
			d.inject(nil)
			refused := times - left
			if err != nil {
				t.Errorf("%s, %v at step %d: %v", name, class, step+1, err)
			}
			if got := retries(q, class) - before; got != int64(refused) {
				t.Errorf("%s, %v at step %d: refused %d times, and %d retries counted", name, class, step+1, refused, got)
			}
			return refused == 0
		}
		for _, o := range operations {
			for step := range maxSteps {
				call, effect := o.prepare(f, fmt.Sprintf("%s, %v %d", o.name, class, step))
				done := refuse(o.name, step, call)
				if n := effect(); n != 1 {
					t.Errorf("%s, %v at step %d: the effect is %d", o.name, class, step+1, n)
				}
				if done {
					if step == 0 {
						t.Errorf("%s has no step: proves nothing", o.name)
					}
					break
				}
			}
		}
		for name, call := range otherCalls(f) {
			for step := range maxSteps {
				if refuse(name, step, call) {
					break
				}
			}
		}
	}
	f.idle(db)
}

// refusedForEver: after Options.RetryBudget the error is shown, with its cause
// and how often it came.
func refusedForEver(t *testing.T, e Engine) {
	f := start(t, e, nil)
	refusals := e.Refusals(t, f.open(f.dsn))
	const budget = 30 * time.Millisecond
	db, d := f.faulty()
	q := f.queue(db, &queue.Options{RetryBudget: budget})
	warm(f, q)
	for class, refusal := range refusals {
		calls := otherCalls(f)
		effects := map[string]func() int{}
		for _, o := range operations {
			calls[o.name], effects[o.name] = o.prepare(f, fmt.Sprintf("%s, %v", o.name, class))
		}
		for name, call := range calls {
			d.inject(func(c driverCall) driverFault {
				if c.op == "rollback" {
					return driverFault{}
				}
				return driverFault{before: refusal}
			})
			started := time.Now()
			err := call(f.ctx, q)
			took := time.Since(started)
			d.inject(nil)
			switch {
			case !errors.Is(err, refusal) || errors.Is(err, queue.ErrOutcomeUnknown):
				t.Errorf("%s, %v: %v", name, class, err)
			case !strings.Contains(err.Error(), class.String()) || !strings.Contains(err.Error(), budget.String()) || !strings.Contains(err.Error(), "refused"):
				t.Errorf("%s, %v: the error is not clear: %v", name, class, err)
			case took < budget || took > budget+2*time.Second:
				t.Errorf("%s, %v: given up after %v, want %v", name, class, took, budget)
			}
			if effect := effects[name]; effect != nil && effect() != 0 {
				t.Errorf("%s, %v: the effect is %d", name, class, effect())
			}
		}
	}
	f.idle(db)
}

// lostPop: jobs whose pop was committed and never answered are nobody's; they
// come back when the leases end, the attempt counted.
func lostPop(t *testing.T, e Engine) {
	f := start(t, e, nil)
	db, d := f.faulty()
	q := f.queue(db, nil)
	warm(f, q)
	f.push(jobs(5)...)
	lost := false
	for step := 0; !lost; step++ {
		if step == 10*maxSteps {
			t.Fatal("no step of a pop is its commit")
		}
		n := 0
		d.inject(func(c driverCall) driverFault {
			if n++; n != 1+step%maxSteps || !c.commits() {
				return driverFault{}
			}
			return driverFault{after: io.EOF, broken: true}
		})
		jobs, err := q.Pop(f.ctx, 10, &queue.PopOptions{Queues: []string{"q"}, Lease: time.Hour})
		d.inject(nil)
		f.must(q.Release(f.ctx, jobs...)) // that step does not commit, or there is none
		lost = err != nil && f.stats().Running == 5
	}
	f.wantStats(0, 0, 5, 0)
	f.popNone()
	f.age(e.AgeLeases, 2*time.Hour)
	var again []*queue.Job
	f.within(3*time.Second, "all are popped again", func() bool {
		again = append(again, f.pop(10)...)
		return len(again) == 5
	})
	for _, j := range again {
		if j.Attempt != 2 {
			t.Errorf("attempt %d", j.Attempt)
		}
	}
}

// damagedJob: headers that somebody's SQL has damaged are that job's trouble.
func damagedJob(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const n, bad = 20, 7
	batch := jobs(n)
	for i := range batch {
		batch[i].Headers = map[string]string{"a": "b"}
		batch[i].MaxAttempts = 2
	}
	pushed := f.push(batch...)
	id := pushed[bad].ID
	if _, err := f.session().Run(f.ctx, e.DamageHeaders, map[string]any{"id": id}); err != nil {
		t.Fatal(err)
	}
	check := func(got []*queue.Job) {
		t.Helper()
		for _, j := range got {
			if j.ID == id {
				t.Fatalf("popped the damaged job: %+v", j)
			}
			if j.Headers["a"] != "b" {
				t.Errorf("headers of job %d: %v", j.ID, j.Headers)
			}
		}
	}
	got := f.pop(n)
	if check(got); len(got) != n-1 {
		t.Errorf("popped %d jobs, want %d", len(got), n-1)
	}
	info := f.wantState(id, queue.Delayed) // failed, and to be tried again
	if len(info.Errors) != 1 || !strings.Contains(info.Errors[0].Error, "headers") {
		t.Errorf("the damaged job: %+v", info)
	}
	if string(info.Payload) != fmt.Sprint(bad) {
		t.Errorf("its payload: %q", info.Payload)
	}
	f.age(e.AgeDue, time.Hour)
	f.within(3*time.Second, "the damaged job is dead", func() bool {
		check(f.pop(n))
		info, err := f.q.Get(f.ctx, id)
		f.must(err)
		return info.State == queue.Dead
	})
	if info := f.info(id); len(info.Errors) != 2 || !strings.Contains(info.Errors[1].Error, "headers") {
		t.Errorf("the damaged job: %+v", info)
	}
	f.must(f.q.Ack(f.ctx, got...))
	// One by one, an empty pop must not be the answer while there are others.
	batch = jobs(3)
	batch[0].Headers = map[string]string{"a": "b"}
	pushed = f.push(batch...)
	if _, err := f.session().Run(f.ctx, e.DamageHeaders, map[string]any{"id": pushed[0].ID}); err != nil {
		t.Fatal(err)
	}
	if j := f.popOne(); j.ID != pushed[1].ID {
		t.Errorf("popped %+v", j)
	}
}
