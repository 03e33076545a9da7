// Package testserver finds a database server for tests and benchmarks, or starts one.
//
// For each engine, here PostgreSQL, it tries in this order:
//
//  1. A DSN in QUEUE_TEST_POSTGRES_DSN, of a role that may create databases: a URL; for MySQL and MariaDB
//     (QUEUE_TEST_MYSQL_…, QUEUE_TEST_MARIADB_…) what their driver reads, user:password@tcp(host:3306)/.
//  2. A container, when a Docker daemon answers: the image in QUEUE_TEST_POSTGRES_IMAGE, or the
//     official one, when it is present or can be pulled.
//  3. The server's own binaries on this machine.
//
// Where none is to be had the test is skipped, with a message that says what was tried and what to
// install. Two variables make the choice strict:
//
//   - QUEUE_TEST_POSTGRES_FROM is dsn, container or binaries: that way and no other. It fails the test
//     when that way is closed.
//   - QUEUE_TEST_REQUIRE is a comma-separated list of engines, as in "postgres,sqlite", whose tests
//     must run: each skip of theirs becomes a failure. CI sets it.
//
// What was asked for by name never falls through to the next way: a DSN that does not answer, or an
// image that was named and cannot be had, is a failure.
//
// A test that restarts its server takes one of its own, from a container or binaries in spite of a DSN:
// see [PrivatePostgres].
//
// A server that this package started is stopped by [Main]; without it, or when the test process is
// killed, a watchdog stops the server as soon as the process is gone. (In a container the watchdog
// needs the docker command; without it, testcontainers' own reaper does that unless
// TESTCONTAINERS_RYUK_DISABLED is set.)
//
// A new engine is one file: an [engine] that registers itself, and its two exported functions.
package testserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The ways to a server, as [Server.From] names them and the variables QUEUE_TEST_…_FROM accept them.
const (
	FromDSN       = "dsn"
	FromContainer = "container"
	FromBinaries  = "binaries"
)

// A Mode is a way to stop a server.
type Mode int

const (
	// Fast ends the sessions and shuts the server down in good order.
	Fast Mode = iota
	// Immediate kills the server, as a crash would: it recovers when it starts again.
	Immediate
)

const (
	startTimeout = 2 * time.Minute // until a started server answers
	stopTimeout  = time.Minute
	adminTimeout = 30 * time.Second // to create or drop a database
)

// A Server is a database server that tests may use.
type Server struct {
	// DSN is that of the server's administrative database, or of none. Tests keep their tables out of it:
	// see [Server.NewDatabase].
	DSN string
	// Version is what the server says of itself, such as "18.1".
	Version string
	// From is the way it was found: [FromDSN], [FromContainer] or [FromBinaries].
	From string

	engine  *engine
	backend backend // nil when it is not ours to stop
	private bool
	note    string // why it is not from a container, if one was tried
}

// An engine is what this package knows of one kind of server.
type engine struct {
	name    string // in the variables' names, in capitals, and in QUEUE_TEST_REQUIRE
	title   string
	image   string // unless the variable names another
	install string // what to do where no server was found

	// container and binaries start a server of their own. A [closedError] says that this way is closed on
	// this machine.
	container func(ctx context.Context, image string) (backend, error)
	binaries  func(ctx context.Context) (backend, error)

	// ping returns the server's version once it accepts connections.
	ping func(ctx context.Context, dsn string) (version string, err error)
	// createDatabase creates the database and returns its DSN.
	createDatabase func(ctx context.Context, dsn, name string) (string, error)
	// dropDatabase drops it, in use or not.
	dropDatabase func(ctx context.Context, dsn, name string) error

	mu     sync.Mutex
	tried  bool // server and err hold the outcome
	server *Server
	err    error
}

// A backend is a server of ours, with its data.
type backend interface {
	// dsn is the same for the backend's whole life.
	dsn() string
	// start starts the server on its data; it does not wait until the server answers.
	start(ctx context.Context) error
	// exited says how the server ended, or nil while it runs.
	exited(ctx context.Context) error
	// stop stops the server and keeps its data.
	stop(ctx context.Context, mode Mode) error
	// log is the end of the server's log.
	log(ctx context.Context) string
	// remove stops the server if it runs and deletes all that belongs to it.
	remove(ctx context.Context) error
}

// closedError says why one way to a server, or all of them, is closed on this machine.
type closedError struct{ reason string }

func (e *closedError) Error() string { return e.reason }

func isClosed(err error) bool {
	closed := new(closedError)
	return errors.As(err, &closed)
}

func closedf(format string, args ...any) error {
	return &closedError{fmt.Sprintf(format, args...)}
}

// errExited marks a server that ended instead of answering.
var errExited = errors.New("the server ended")

var engines []*engine

func register(e *engine) *engine {
	engines = append(engines, e)
	return e
}

// Main runs the package's tests, stops the servers they shared, and exits. It is the whole of a
// TestMain.
func Main(m *testing.M) {
	code := m.Run()
	for _, e := range engines {
		if err := e.stopShared(); err != nil {
			fmt.Fprintln(os.Stderr, "testserver:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// Skip skips the test, or fails it when QUEUE_TEST_REQUIRE names the engine. why says what is missing
// and what to do about it.
func Skip(tb testing.TB, engine, why string) {
	tb.Helper()
	required, err := isRequired(engine)
	switch {
	case err != nil:
		tb.Fatal(err)
	case required:
		tb.Fatalf("%s is required (QUEUE_TEST_REQUIRE): %s", engine, why)
	default:
		tb.Skip(why)
	}
}

// isRequired reports whether QUEUE_TEST_REQUIRE names the engine. It knows the engines, so that a name
// misspelt there does not go unnoticed.
func isRequired(engine string) (bool, error) {
	known := []string{"sqlite"} // which needs no server
	for _, e := range engines {
		known = append(known, e.name)
	}
	required := false
	for name := range strings.SplitSeq(os.Getenv("QUEUE_TEST_REQUIRE"), ",") {
		name = strings.TrimSpace(name)
		if name != "" && !slices.Contains(known, name) {
			return false, fmt.Errorf("QUEUE_TEST_REQUIRE: unknown engine %q; known are %s", name, strings.Join(known, ", "))
		}
		required = required || name == engine
	}
	return required, nil
}

// shared returns the process's one server of this engine; the first call finds it.
func (e *engine) shared(tb testing.TB) *Server {
	tb.Helper()
	return e.use(tb, func() (*Server, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !e.tried {
			e.server, e.err = e.find(false)
			e.tried = true
		}
		return e.server, e.err
	})
}

func (e *engine) stopShared() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.server
	if s == nil {
		return nil
	}
	e.server, e.err = nil, errors.New("the shared server was stopped")
	return s.remove()
}

// own returns a server for this test alone, which ends with it.
func (e *engine) own(tb testing.TB) *Server {
	tb.Helper()
	s := e.use(tb, func() (*Server, error) { return e.find(true) })
	tb.Cleanup(func() {
		if err := s.remove(); err != nil {
			tb.Errorf("testserver: %v", err)
		}
	})
	return s
}

// use hands the server that find finds to a test, or skips or fails the test.
func (e *engine) use(tb testing.TB, find func() (*Server, error)) *Server {
	tb.Helper()
	// First of all, so that a name misspelt there is noticed where a server exists, too.
	if _, err := isRequired(e.name); err != nil {
		tb.Fatal(err)
	}
	s, err := find()
	switch {
	case isClosed(err):
		Skip(tb, e.name, err.Error())
	case err != nil:
		tb.Fatalf("testserver: %v", err)
	}
	if _, bench := tb.(*testing.B); !bench { // whose log would be printed amid the figures
		tb.Logf("testserver: %s %s from %s", e.title, s.Version, s.From)
		if s.note != "" {
			tb.Logf("testserver: not from a container: %s", s.note)
		}
	}
	return s
}

// env is the name of one of the engine's variables.
func (e *engine) env(suffix string) string {
	return "QUEUE_TEST_" + strings.ToUpper(e.name) + "_" + suffix
}

// find tries the ways to a server in their order. Its error is a closedError when none is open.
func (e *engine) find(private bool) (*Server, error) {
	ctx := context.Background()
	dsn, image, only := os.Getenv(e.env("DSN")), os.Getenv(e.env("IMAGE")), os.Getenv(e.env("FROM"))
	switch only {
	case "", FromDSN, FromContainer, FromBinaries:
	default:
		return nil, fmt.Errorf("%s=%s: want %s, %s or %s, or nothing to try them in this order",
			e.env("FROM"), only, FromDSN, FromContainer, FromBinaries)
	}
	var tried []string
	note := ""

	if only == "" || only == FromDSN {
		switch {
		case private && (dsn != "" || only != ""):
			tried = append(tried, "dsn: this test stops and starts its server, so it needs one of its own")
		case dsn != "":
			return e.connect(ctx, dsn)
		case only != "":
			return nil, fmt.Errorf("%s=dsn, but %s is not set", e.env("FROM"), e.env("DSN"))
		default:
			tried = append(tried, "dsn: "+e.env("DSN")+" is not set")
		}
	}
	if only == "" || only == FromContainer {
		b, err := e.container(ctx, cmp.Or(image, e.image))
		if err == nil {
			return e.launch(ctx, &Server{From: FromContainer, backend: b, private: private})
		}
		if only != "" || image != "" || !isClosed(err) {
			return nil, fmt.Errorf("%s from a container: %v", e.title, err)
		}
		note = err.Error()
		tried = append(tried, "container: "+note)
	}
	if only == "" || only == FromBinaries {
		b, err := e.binaries(ctx)
		if err == nil {
			return e.launch(ctx, &Server{From: FromBinaries, backend: b, private: private, note: note})
		}
		if only != "" || !isClosed(err) {
			return nil, fmt.Errorf("%s from binaries: %v", e.title, err)
		}
		tried = append(tried, "binaries: "+err.Error())
	}
	return nil, closedf("no %s server for this test\n  %s\n%s", e.title, strings.ReplaceAll(strings.Join(tried, "\n"), "\n", "\n  "), e.install)
}

// connect returns the server at a DSN that the user gave.
func (e *engine) connect(ctx context.Context, dsn string) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	version, err := e.ping(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.env("DSN"), err)
	}
	return &Server{DSN: dsn, Version: version, From: FromDSN, engine: e}, nil
}

// launch starts a new server for the first time.
func (e *engine) launch(ctx context.Context, s *Server) (*Server, error) {
	s.engine, s.DSN = e, s.backend.dsn()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// start starts the server and returns once it answers. Its error carries the end of the server's log.
func (s *Server) start(ctx context.Context) error {
	err := s.backend.start(ctx)
	if err == nil {
		err = s.ready(ctx)
	}
	if err == nil {
		return nil
	}
	// A context of its own, for ctx may be what ran out.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminTimeout)
	defer cancel()
	return fmt.Errorf("%s from %s did not start: %w\nits log ends:\n%s", s.engine.title, s.From, err, s.backend.log(ctx))
}

// ready waits until the server answers.
func (s *Server) ready(ctx context.Context) error {
	for {
		version, err := s.ping(ctx)
		if err == nil {
			if s.Version == "" {
				s.Version = version
			}
			return nil
		}
		if exit := s.backend.exited(ctx); exit != nil {
			return fmt.Errorf("%w: %w", errExited, exit)
		}
		if ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *Server) ping(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return s.engine.ping(ctx, s.DSN)
}

// remove ends a server of ours.
func (s *Server) remove() error {
	if s.backend == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := s.backend.remove(ctx); err != nil {
		return fmt.Errorf("removing %s from %s: %w", s.engine.title, s.From, err)
	}
	return nil
}

// Restart stops the server and starts it again, with the same data and at the same DSN. It is for a
// server of the test's own, such as [PrivatePostgres] returns.
func (s *Server) Restart(tb testing.TB, mode Mode) {
	tb.Helper()
	if !s.private {
		tb.Fatal("testserver: Restart of a server that others use; take a private one")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := s.backend.stop(ctx, mode); err != nil {
		tb.Fatalf("testserver: stopping %s: %v", s.engine.title, err)
	}
	// A killed server may leave children that hold on to its data for a moment.
	err := s.start(ctx)
	for deadline := time.Now().Add(15 * time.Second); errors.Is(err, errExited) && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
		err = s.start(ctx)
	}
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
}

// NewDatabase creates an empty database and returns its DSN. It is dropped when the test ends, even if
// connections to it are open.
func (s *Server) NewDatabase(tb testing.TB) string {
	tb.Helper()
	name := "queue_test_" + randomName()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	dsn, err := s.engine.createDatabase(ctx, s.DSN, name)
	if err != nil {
		if s.From == FromDSN {
			tb.Fatalf("testserver: the role of %s cannot create a database; let it, or unset the variable: %v",
				s.engine.env("DSN"), err)
		}
		tb.Fatalf("testserver: creating a database: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
		defer cancel()
		if err := s.engine.dropDatabase(ctx, s.DSN, name); err != nil {
			tb.Errorf("testserver: dropping database %s: %v", name, err)
		}
	})
	return dsn
}

// randomName is fit for a database's and a container's name.
func randomName() string {
	return strings.ToLower(rand.Text()[:12])
}

// tail is the end of a log, enough to see why a server did not start.
func tail(log []byte) string {
	const most = 8 << 10
	if len(log) > most {
		log = log[len(log)-most:]
		if _, rest, ok := bytes.Cut(log, []byte("\n")); ok {
			log = rest
		}
	}
	return strings.TrimSpace(string(log))
}

var ports atomic.Int32

// freePort returns a port of this machine that is free and that no other test process takes at the same
// time. It lies below the range from which systems take the ports of outgoing connections: a client that
// dials a stopped server could otherwise be given the server's own port, and keep it from starting again.
func freePort() (int, error) {
	const first, processes, each = 15000, 900, 16
	start := first + os.Getpid()%processes*each
	for range each {
		port := start + int(ports.Add(1)-1)%each
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("none of the ports %d to %d is free", start, start+each-1)
}
