package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sqlqueue/queue"
	"github.com/sqlqueue/queue/dialect"
)

// A program that calls RunProcesses calls Child first of all, in main or in
// TestMain: the other processes are the program itself, run again.
const childVariable = "QUEUE_BENCH_CHILD"

// An order is what a child is to do, sent to its standard input, for the DSN
// may hold a password.
type order struct {
	Engine    string
	DSN       string
	Namespace dialect.Namespace
	Conns     int
	Shards    int
	Loop      Loop
}

// RunProcesses runs the loop in n processes at once, each with a pool of conns
// connections and a queue of its own; shards is Options.Shards. All begin at the
// same time, after they have warmed up. Jobs counts those of all processes
// together: each tells how many it has acked, and all are stopped when that is
// enough. (The last may so be told a few milliseconds late, and pop a few times
// in vain. The time measured ends with the last ack.)
func (l Loop) RunProcesses(ctx context.Context, t Target, n, conns, shards int) (Result, error) {
	self, err := os.Executable()
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithCancel(ctx) // which kills the children that are left
	defer cancel()
	total := l.Jobs
	l.Jobs = 0
	children := make([]*child, n)
	for i := range children {
		if children[i], err = startChild(ctx, self, order{t.Engine.Name, t.DSN, t.Namespace, conns, shards, l}); err != nil {
			return Result{}, err
		}
		defer children[i].wait()
		defer cancel()
	}
	for _, c := range children {
		if r, err := c.read(); err != nil || !r.Ready {
			return Result{}, fmt.Errorf("bench: a process ended: %v: %s", err, c.stderr.String())
		}
	}
	var acked atomic.Int64
	stop := sync.OnceFunc(func() { tell(children, "stop") })
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, c := range children {
		wg.Go(func() {
			for c.result == nil && errs[i] == nil {
				var r childReport
				if r, errs[i] = c.read(); errs[i] != nil {
					errs[i] = fmt.Errorf("bench: a process ended: %w: %s", errs[i], c.stderr.String())
					stop()
				}
				c.result = r.Result
				if sum := acked.Add(r.Acked); total > 0 && sum >= total {
					stop()
				}
			}
		})
	}
	tell(children, "go")
	wg.Wait()
	var sum Result
	for _, c := range children {
		if c.result != nil {
			sum.Beside(*c.result)
		}
	}
	return sum, firstError(errs)
}

// A childReport is a line that a child writes.
type childReport struct {
	Ready  bool    `json:"ready,omitempty"`
	Acked  int64   `json:"acked,omitempty"` // since the last line
	Result *Result `json:"result,omitempty"`
}

func tell(children []*child, word string) {
	for _, c := range children {
		fmt.Fprintln(c.in, word) // one that is dead is noticed when it is read
	}
}

type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr strings.Builder
	result *Result // when it has ended
}

func startChild(ctx context.Context, self string, o order) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, self)}
	c.cmd.Env = append(os.Environ(), childVariable+"=1")
	c.cmd.Stderr = &c.stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = json.NewDecoder(out)
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	return c, json.NewEncoder(c.in).Encode(o)
}

func (c *child) wait() {
	c.in.Close()
	c.cmd.Wait()
}

func (c *child) read() (childReport, error) {
	var r childReport
	err := c.out.Decode(&r)
	if err != nil {
		c.wait() // its standard error is complete then
	}
	return r, err
}

// Child returns at once, unless this process is one of those that RunProcesses
// started: then it does as it is told and exits.
func Child() {
	if os.Getenv(childVariable) == "" {
		return
	}
	if err := obey(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func obey() error {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	t := Target{DSN: o.DSN, Namespace: o.Namespace}
	for _, e := range Engines {
		if e.Name == o.Engine {
			t.Engine = e
		}
	}
	if t.Engine == nil {
		return fmt.Errorf("bench: unknown engine %q", o.Engine)
	}
	ctx := context.Background()
	db, err := t.Open(o.Conns)
	if err != nil {
		return err
	}
	defer db.Close()
	q, err := t.Queue(db, &queue.Options{Shards: o.Shards})
	if err != nil {
		return err
	}
	defer q.Close()
	if err := o.Loop.Warm(ctx, q); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(childReport{Ready: true}); err != nil {
		return err
	}
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		if _, err := in.ReadString('\n'); err != nil {
			os.Exit(1) // the parent has died
		}
		stop()
	}()
	var acked atomic.Int64
	o.Loop.Acked = func(n int) { acked.Add(int64(n)) }
	done := make(chan struct{})
	told := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				close(told)
				return
			case <-time.After(10 * time.Millisecond):
			}
			if n := acked.Swap(0); n > 0 {
				if err := out.Encode(childReport{Acked: n}); err != nil {
					os.Exit(1)
				}
			}
		}
	}()
	result, err := o.Loop.Run(ctx, q)
	close(done)
	<-told
	if err != nil && ctx.Err() == nil {
		return err
	}
	result.Memory = peakMemory()
	return out.Encode(childReport{Acked: acked.Swap(0), Result: &result})
}
