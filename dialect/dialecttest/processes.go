package dialecttest

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	addAlone("concurrency: four processes, one of them killed", processes)
}

// The environment of a child: the test binary itself, started again.
const (
	childTest = "QUEUE_TEST_CHILD"     // the test that calls Run
	childDSN  = "QUEUE_TEST_CHILD_DSN" // of its database
)

// killedLease is the lease of the children's pops: after it the jobs of the one
// that was killed are found.
const killedLease = 4 * time.Second

// runChild does a child's work if this process is one.
func runChild(t *testing.T, e Engine) bool {
	if os.Getenv(childTest) != e.test {
		return os.Getenv(childTest) != "" // another engine's child
	}
	db, err := sql.Open(e.Driver, os.Getenv(childDSN))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	q, err := queue.New(db, e.Dialect, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	go func() { // until the parent closes the pipe, or is gone
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	say("node %s", q.Node())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := childWork(ctx, db, q); err != nil && ctx.Err() == nil {
				say("error %v", err)
			}
		})
	}
	wg.Wait()
	return true
}

var sayMu sync.Mutex

// say writes a line that the parent has even if this process is killed next.
func say(format string, args ...any) {
	sayMu.Lock()
	defer sayMu.Unlock()
	fmt.Printf("child "+format+"\n", args...)
}

// childWork pops and works. The effect of a job is a row, written in the
// transaction of its ack for jobs of the kind "once".
func childWork(ctx context.Context, db *sql.DB, q *queue.Queue) error {
	for ctx.Err() == nil {
		jobs, err := q.Pop(ctx, 10, &queue.PopOptions{Queues: []string{"q"}, Lease: killedLease})
		if err != nil {
			return err
		}
		for _, j := range jobs {
			say("popped %d", j.ID)
		}
		if len(jobs) == 0 {
			time.Sleep(5 * time.Millisecond)
		}
		for _, j := range jobs {
			if j.Kind == "once" {
				err = ackOnce(ctx, db, q, j)
			} else if _, err = db.ExecContext(ctx, effect(j)); err == nil {
				err = q.Ack(ctx, j)
			}
			switch {
			case errors.Is(err, queue.ErrLeaseLost):
				say("lost %d", j.ID)
			case err != nil:
				return err
			default:
				say("acked %d", j.ID)
			}
		}
	}
	return nil
}

func effect(j *queue.Job) string { return fmt.Sprintf("INSERT INTO effects (job) VALUES (%d)", j.ID) }

func ackOnce(ctx context.Context, db *sql.DB, q *queue.Queue, j *queue.Job) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, effect(j)); err != nil {
		return err
	}
	if err := q.AckTx(ctx, tx, j); err != nil {
		return err
	}
	return tx.Commit()
}

// A child is a process of the test's, and what it has said.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer

	mu     sync.Mutex
	said   map[string]map[string]int // by what, and of which job
	lines  int
	errors []string
	done   chan struct{}
}

func (f *fixture) child() *child {
	f.Helper()
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(f.e.test), "/", "$/^") + "$"
	c := &child{cmd: exec.Command(os.Args[0], "-test.run="+pattern, "-test.timeout=3m"), said: map[string]map[string]int{}, done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), childTest+"="+f.e.test, childDSN+"="+f.dsn)
	stdin, err := c.cmd.StdinPipe()
	f.must(err)
	c.stdin = stdin
	stdout, err := c.cmd.StdoutPipe()
	f.must(err)
	c.cmd.Stderr = os.Stderr
	f.must(c.cmd.Start())
	f.Cleanup(func() { // without effect on one that has ended
		c.cmd.Process.Kill()
		c.cmd.Wait()
	})
	go func() {
		defer close(c.done)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			c.hear(lines.Text())
		}
	}()
	return c
}

func (c *child) hear(line string) {
	said, ok := strings.CutPrefix(line, "child ")
	if !ok {
		return // of the test framework
	}
	what, about, _ := strings.Cut(said, " ")
	c.mu.Lock()
	defer c.mu.Unlock()
	if what == "error" {
		c.errors = append(c.errors, about)
	}
	if c.said[what] == nil {
		c.said[what] = map[string]int{}
	}
	c.said[what][about]++
	c.lines++
}

// count returns how many things of a sort the child has said.
func (c *child) count(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.said[what])
}

// processes: four work on one queue, and one is killed in the midst of it. What
// it held is done by the others, and nothing else is done twice.
func processes(t *testing.T, e Engine) {
	f := start(t, e, nil)
	const total, more, batch = 1500, 500, 50
	f.exec("CREATE TABLE effects (job bigint NOT NULL)")
	ids := map[string]bool{} // and whether its effect is exactly once
	push := func(n int) {
		batch := make([]queue.NewJob, n)
		for i := range batch {
			batch[i] = queue.NewJob{Queue: "q", Kind: []string{"once", "atleast"}[i%2]}
		}
		for i, p := range f.push(batch...) {
			ids[fmt.Sprint(p.ID)] = i%2 == 0
		}
	}
	push(total)
	var children []*child
	for range 4 {
		children = append(children, f.child())
	}
	victim := children[0]
	f.within(60*time.Second, "the first child works, and holds jobs", func() bool {
		acked := victim.count("acked")
		return acked >= 20 && victim.count("popped") > acked
	})
	f.must(victim.cmd.Process.Kill())
	victim.cmd.Wait()
	<-victim.done
	for range more / batch { // the others have something to pop meanwhile
		push(batch)
	}
	f.within(60*time.Second, "all jobs are done", func() bool {
		s := f.stats()
		return s.Ready+s.Delayed+s.Running == 0
	})
	for _, c := range children[1:] {
		c.stdin.Close()
		<-c.done
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("a child: %v", err)
		}
		if len(c.errors) > 0 {
			t.Errorf("a child met with errors: %q", c.errors)
		}
		if c.count("acked") == 0 {
			t.Error("a child had nothing to do: proves nothing")
		}
	}

	popped, acked := map[string]int{}, map[string]int{}
	for _, c := range children {
		for id, n := range c.said["popped"] {
			popped[id] += n
		}
		for id, n := range c.said["acked"] {
			acked[id] += n
		}
	}
	effects := f.effects()
	held, again := 0, 0
	for id, once := range ids {
		// What the victim was about to ack when it died may be acked or not.
		wasHeld := victim.said["popped"][id] > victim.said["acked"][id]
		if wasHeld {
			held++
		}
		switch {
		case effects[id] == 0:
			t.Errorf("job %s was never done", id)
		case effects[id] > 1 && (once || !wasHeld || effects[id] > 2):
			t.Errorf("job %s was done %d times; held by the killed process: %v", id, effects[id], wasHeld)
		case popped[id] > 1 && !wasHeld:
			t.Errorf("job %s was popped %d times, and the killed process did not hold it", id, popped[id])
		case acked[id] > 1 || acked[id] == 0 && !wasHeld:
			t.Errorf("job %s was acked %d times", id, acked[id])
		}
		if popped[id] > 1 {
			again++
		}
	}
	if len(effects) != len(ids) || len(popped) != len(ids) {
		t.Errorf("%d jobs pushed, %d popped, %d done", len(ids), len(popped), len(effects))
	}
	if held == 0 || held > 20 {
		t.Errorf("the killed process held %d jobs: proves nothing, or more than it popped", held)
	}
	t.Logf("the killed process held %d jobs, %d were popped again", held, again)
}

func (f *fixture) effects() map[string]int {
	f.Helper()
	rows, err := f.db.QueryContext(f.ctx, "SELECT job FROM effects")
	f.must(err)
	defer rows.Close()
	out := map[string]int{}
	for rows.Next() {
		var id string
		f.must(rows.Scan(&id))
		out[id]++
	}
	f.must(rows.Err())
	return out
}
