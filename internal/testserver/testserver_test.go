package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestMain(m *testing.M) {
	if how := os.Getenv("TESTSERVER_HELPER"); how != "" {
		helper(how) // see TestProcessGone
		return
	}
	Main(m)
}

// recorder is a testing.TB that records its end instead of ending the test.
type recorder struct {
	testing.TB
	outcome string // "skip" or "fatal", and the message; "" when it went through
	log     strings.Builder
	cleanup []func()
}

func (r *recorder) Helper()                     {}
func (r *recorder) Logf(f string, args ...any)  { fmt.Fprintf(&r.log, f+"\n", args...) }
func (r *recorder) Cleanup(f func())            { r.cleanup = append(r.cleanup, f) }
func (r *recorder) Skip(args ...any)            { r.end("skip", fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any)           { r.end("fatal", fmt.Sprint(args...)) }
func (r *recorder) Fatalf(f string, arg ...any) { r.end("fatal", fmt.Sprintf(f, arg...)) }

func (r *recorder) end(how, message string) {
	r.outcome = how + ": " + message
	runtime.Goexit()
}

// record runs f as a test would be run.
func record(t *testing.T, f func(tb testing.TB)) *recorder {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(r.cleanup) {
				f()
			}
		}()
		f(r)
	}()
	<-done
	return r
}

// fakeBackend is a server that answers at once.
type fakeBackend struct {
	url     string
	removed bool
}

func (b *fakeBackend) dsn() string                      { return b.url }
func (b *fakeBackend) start(context.Context) error      { return nil }
func (b *fakeBackend) exited(context.Context) error     { return nil }
func (b *fakeBackend) stop(context.Context, Mode) error { return nil }
func (b *fakeBackend) log(context.Context) string       { return "" }
func (b *fakeBackend) remove(context.Context) error     { b.removed = true; return nil }

// fakeEngine is PostgreSQL's to the variables, and each way answers with its own name, or with its error.
func fakeEngine(dsnErr, containerErr, binariesErr error) *engine {
	return &engine{
		name:    "postgres",
		title:   "Fake",
		image:   "fake:1",
		install: "install it",
		container: func(_ context.Context, image string) (backend, error) {
			return &fakeBackend{url: "container " + image}, containerErr
		},
		binaries: func(context.Context) (backend, error) {
			return &fakeBackend{url: "binaries"}, binariesErr
		},
		ping: func(_ context.Context, dsn string) (string, error) {
			if dsn == "given" {
				return "1", dsnErr
			}
			return "2", nil
		},
	}
}

// setEnv sets all of the package's variables, to nothing those that env does not name.
func setEnv(t *testing.T, env map[string]string) {
	t.Helper()
	names := []string{"REQUIRE"}
	for _, e := range engines {
		name := strings.ToUpper(e.name)
		names = append(names, name+"_DSN", name+"_IMAGE", name+"_FROM")
	}
	for _, name := range names {
		t.Setenv("QUEUE_TEST_"+name, env[name])
	}
}

func TestOrder(t *testing.T) {
	closed := closedf("it is closed")
	broken := errors.New("it is broken")
	type env = map[string]string
	tests := []struct {
		name      string
		env       env
		private   bool
		dsn       error // how each way answers
		container error
		binaries  error
		want      string // the DSN, or what the skip or failure must begin with
		mentions  []string
	}{
		{name: "the DSN first", env: env{"POSTGRES_DSN": "given", "POSTGRES_IMAGE": "mine"}, want: "given"},
		{name: "a DSN that fails is not passed over", env: env{"POSTGRES_DSN": "given"}, dsn: broken,
			want: "fatal", mentions: []string{"QUEUE_TEST_POSTGRES_DSN", "broken"}},
		{name: "then a container", want: "container fake:1"},
		{name: "of the image named", env: env{"POSTGRES_IMAGE": "mine"}, want: "container mine"},
		{name: "a container that fails is not passed over", container: broken, want: "fatal", mentions: []string{"broken"}},
		{name: "then binaries", container: closed, want: "binaries"},
		{name: "an image named and missing is a failure", env: env{"POSTGRES_IMAGE": "mine"}, container: closed, want: "fatal"},
		{name: "binaries that fail are a failure", container: closed, binaries: broken, want: "fatal"},
		{name: "nothing", container: closed, binaries: closed, want: "skip",
			mentions: []string{"dsn: QUEUE_TEST_POSTGRES_DSN is not set", "container: it is closed", "binaries: it is closed", "install it"}},
		{name: "nothing though required", env: env{"REQUIRE": "sqlite, postgres"}, container: closed, binaries: closed,
			want: "fatal", mentions: []string{"QUEUE_TEST_REQUIRE", "install it"}},
		{name: "another required", env: env{"REQUIRE": "sqlite"}, container: closed, binaries: closed, want: "skip"},
		{name: "required and found", env: env{"REQUIRE": "postgres"}, want: "container fake:1"},
		{name: "an unknown engine required", env: env{"REQUIRE": "postgers"}, want: "fatal", mentions: []string{"postgers", "sqlite"}},
		{name: "from binaries alone", env: env{"POSTGRES_FROM": "binaries", "POSTGRES_DSN": "given", "POSTGRES_IMAGE": "mine"}, want: "binaries"},
		{name: "from a container alone", env: env{"POSTGRES_FROM": "container", "POSTGRES_DSN": "given"}, want: "container fake:1"},
		{name: "from a DSN alone", env: env{"POSTGRES_FROM": "dsn", "POSTGRES_DSN": "given"}, want: "given"},
		{name: "from binaries, none there", env: env{"POSTGRES_FROM": "binaries"}, binaries: closed, want: "fatal"},
		{name: "from a container, none there", env: env{"POSTGRES_FROM": "container"}, container: closed, want: "fatal"},
		{name: "from a DSN, none given", env: env{"POSTGRES_FROM": "dsn"}, want: "fatal"},
		{name: "from elsewhere", env: env{"POSTGRES_FROM": "brew"}, want: "fatal", mentions: []string{"brew", "binaries"}},
		{name: "private in spite of a DSN", env: env{"POSTGRES_DSN": "given"}, private: true, want: "container fake:1"},
		{name: "private from a DSN alone", env: env{"POSTGRES_DSN": "given", "POSTGRES_FROM": "dsn"}, private: true,
			want: "skip", mentions: []string{"one of its own"}},
		{name: "private and required", env: env{"POSTGRES_DSN": "given", "POSTGRES_FROM": "dsn", "REQUIRE": "postgres"}, private: true, want: "fatal"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			setEnv(t, test.env)
			e := fakeEngine(test.dsn, test.container, test.binaries)
			var s *Server
			r := record(t, func(tb testing.TB) {
				if test.private {
					s = e.own(tb)
				} else {
					s = e.shared(tb)
				}
			})
			got := r.outcome
			if s != nil {
				got = s.DSN
			}
			if !strings.HasPrefix(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			for _, want := range test.mentions {
				if !strings.Contains(got, want) {
					t.Errorf("%q does not mention %q", got, want)
				}
			}
		})
	}
}

func TestFallThroughIsLogged(t *testing.T) {
	setEnv(t, nil)
	e := fakeEngine(nil, closedf("no daemon"), nil)
	r := record(t, func(tb testing.TB) { e.shared(tb) })
	for _, want := range []string{"Fake 2 from binaries", "not from a container: no daemon"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("log %q does not mention %q", r.log.String(), want)
		}
	}
}

func TestSharedOnce(t *testing.T) {
	setEnv(t, nil)
	started := 0
	e := fakeEngine(nil, nil, nil)
	e.container = func(context.Context, string) (backend, error) {
		started++
		return nil, errors.New("it is broken")
	}
	for range 2 {
		if r := record(t, func(tb testing.TB) { e.shared(tb) }); !strings.Contains(r.outcome, "it is broken") {
			t.Errorf("outcome %q", r.outcome)
		}
	}
	if started != 1 {
		t.Errorf("tried %d times, want once", started)
	}
}

func TestRemoved(t *testing.T) {
	setEnv(t, nil)
	b := new(fakeBackend)
	e := fakeEngine(nil, nil, nil)
	e.container = func(context.Context, string) (backend, error) { return b, nil }
	record(t, func(tb testing.TB) { e.own(tb) })
	if !b.removed {
		t.Error("a private server was not removed with its test")
	}

	b.removed = false
	record(t, func(tb testing.TB) { e.shared(tb) })
	if b.removed {
		t.Error("a shared server was removed with its first test")
	}
	if err := e.stopShared(); err != nil || !b.removed {
		t.Errorf("stopShared: removed %v, error %v", b.removed, err)
	}
}

func TestRestartShared(t *testing.T) {
	setEnv(t, nil)
	e := fakeEngine(nil, nil, nil)
	r := record(t, func(tb testing.TB) { e.shared(tb).Restart(tb, Fast) })
	if !strings.HasPrefix(r.outcome, "fatal: ") || !strings.Contains(r.outcome, "private") {
		t.Errorf("outcome %q", r.outcome)
	}
}

func TestSkip(t *testing.T) {
	for require, want := range map[string]string{
		"":         "skip: no disk",
		"postgres": "skip: no disk",
		"sqlite":   "fatal: sqlite is required (QUEUE_TEST_REQUIRE): no disk",
	} {
		setEnv(t, map[string]string{"REQUIRE": require})
		if r := record(t, func(tb testing.TB) { Skip(tb, "sqlite", "no disk") }); r.outcome != want {
			t.Errorf("QUEUE_TEST_REQUIRE=%s: %q, want %q", require, r.outcome, want)
		}
	}
}

func TestFreePort(t *testing.T) {
	seen := make(map[int]bool)
	for range 8 {
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Errorf("port %d was handed out twice", port)
		}
		seen[port] = true
		if port < 15000 || port >= 15000+900*16 {
			t.Errorf("port %d is out of range", port)
		}
	}
}

func TestTail(t *testing.T) {
	if got := tail([]byte("one\ntwo\n")); got != "one\ntwo" {
		t.Errorf("got %q", got)
	}
	long := strings.Repeat("0123456789abcde\n", 1000)
	if got := tail([]byte(long)); len(got) > 8<<10 || !strings.HasPrefix(got, "0123") || !strings.HasSuffix(got, "abcde") {
		t.Errorf("%d bytes, from %q", len(got), got[:32])
	}
}

// A server that cannot start leaves nothing behind, and says why.
func TestStartFails(t *testing.T) {
	if !posix {
		t.Skip("daemons need a POSIX system")
	}
	d, err := newDaemon("false", syscall.SIGTERM, "", "nobody")
	if err != nil {
		t.Fatal(err)
	}
	d.args = []string{"sh", "-c", "echo the disk is full >&2; exit 3"}
	e := fakeEngine(nil, nil, nil)
	e.ping = func(context.Context, string) (string, error) { return "", errors.New("refused") }
	_, err = e.launch(t.Context(), &Server{From: FromBinaries, backend: d})
	if !errors.Is(err, errExited) || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(d.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
}

func TestWatchdog(t *testing.T) {
	if !posix {
		t.Skip("watchdogs need a POSIX system")
	}
	out := filepath.Join(t.TempDir(), "out")
	w, err := startWatchdog(`echo "$last, $1" >"$2"`, "one argument", out)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"first", "last"} {
		if err := w.tell(line); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("the script ran too early")
	}
	if err := w.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(out); string(got) != "last, one argument\n" {
		t.Errorf("got %q, %v", got, err)
	}
}
