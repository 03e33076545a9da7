package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// A daemon is a server's binary that runs as a child of this process, with all that belongs to it in
// one temporary directory.
type daemon struct {
	url  string   // of its administrative database
	args []string // run it in the foreground

	dir      string
	shutdown syscall.Signal // ends it in good order
	hide     string         // variables that begin so mean the user's servers, not this one
	as       *owner         // nil: as this process
	watchdog *watchdog
	child    *child // the last one started
}

var _ backend = (*daemon)(nil)

// An owner is the user that a daemon and its files belong to.
type owner struct{ uid, gid uint32 }

type child struct {
	process *os.Process
	done    chan struct{} // closed when it has ended
	err     error         // then: how
}

// afterDaemon ends the server whose process id is $last with the signal $2, and deletes its directory.
const afterDaemon = `
if [ -n "$last" ] && kill -"$2" "$last" 2>/dev/null; then
	n=0
	while [ $n -lt 100 ] && kill -0 "$last" 2>/dev/null; do sleep 0.1; n=$((n + 1)); done
	kill -9 "$last" 2>/dev/null
fi
rm -rf -- "$1"
`

// newDaemon makes a daemon with its directory and its watchdog. For root the first of the users that
// exists owns the directory and runs the server: most servers refuse to run as root.
func newDaemon(name string, shutdown syscall.Signal, hide string, users ...string) (_ *daemon, err error) {
	if !posix {
		return nil, closedf("not started on this system; use Docker or a DSN")
	}
	d := &daemon{shutdown: shutdown, hide: hide}
	if os.Getuid() == 0 {
		if d.as, err = findOwner(users); err != nil {
			return nil, err
		}
	}
	if d.dir, err = os.MkdirTemp("", "queue-test-"+name+"-"); err != nil {
		return nil, err
	}
	if d.as != nil {
		err = os.Chown(d.dir, int(d.as.uid), int(d.as.gid))
	}
	if err == nil {
		d.watchdog, err = startWatchdog(afterDaemon, d.dir, strconv.Itoa(int(shutdown)))
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(d.dir))
	}
	return d, nil
}

// findOwner returns the first of the users that this machine has.
func findOwner(users []string) (*owner, error) {
	for _, name := range users {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &owner{uint32(uid), uint32(gid)}, nil
	}
	return nil, fmt.Errorf("the server does not run as root, and there is no user %s to run it as",
		strings.Join(users, " or "))
}

// command prepares a program of the server's: as its user, in its directory, with English messages.
func (d *daemon) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = d.dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return d.hide != "" && strings.HasPrefix(v, d.hide)
	}), "LC_ALL=C")
	// ^C at the terminal ends the tests, and then the watchdog ends the server.
	detach(cmd, d.as)
	return cmd
}

// run runs a program that prepares the server, to its end.
func (d *daemon) run(ctx context.Context, args ...string) error {
	if out, err := d.command(ctx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(args[0]), err, tail(out))
	}
	return nil
}

func (d *daemon) logFile() string { return filepath.Join(d.dir, "log") }

func (d *daemon) dsn() string { return d.url }

func (d *daemon) start(context.Context) error {
	log, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := d.command(context.Background(), d.args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	told := d.watchdog.tell(strconv.Itoa(cmd.Process.Pid))
	c := &child{process: cmd.Process, done: make(chan struct{})}
	d.child = c
	go func() {
		defer close(c.done)
		if c.err = cmd.Wait(); c.err == nil {
			c.err = errors.New("exit status 0")
		}
		// The next process of this number is somebody else's.
		_ = d.watchdog.tell("")
	}()
	return told
}

func (d *daemon) exited(context.Context) error {
	select {
	case <-d.child.done:
		return d.child.err
	default:
		return nil
	}
}

func (d *daemon) stop(ctx context.Context, mode Mode) error {
	sig := d.shutdown
	if mode == Immediate {
		sig = syscall.SIGKILL
	}
	if err := d.child.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-d.child.done:
		return nil
	case <-ctx.Done():
		_ = d.child.process.Kill()
		return fmt.Errorf("killed, as it did not stop: %w", ctx.Err())
	}
}

func (d *daemon) log(context.Context) string {
	log, err := os.ReadFile(d.logFile())
	if err != nil {
		return err.Error()
	}
	return tail(log)
}

func (d *daemon) remove(ctx context.Context) error {
	var err error
	if d.child != nil {
		err = d.stop(ctx, Fast)
	}
	return errors.Join(err, d.watchdog.close(ctx)) // which deletes the directory
}

// newestProgram returns the path of the program of this name, in PATH or in the places (patterns of
// directories), whose version is the highest; or "". version returns nil for one that is of no use.
func newestProgram(name string, places []string, version func(path string) []int) string {
	var paths []string
	if path, err := exec.LookPath(name); err == nil {
		// PATH may hold links to single programs.
		if path, err = filepath.EvalSymlinks(path); err == nil {
			paths = append(paths, path)
		}
	}
	for _, place := range places {
		found, _ := filepath.Glob(filepath.Join(place, name)) // the patterns are well formed
		paths = append(paths, found...)
	}
	var best string
	var newest []int
	for _, path := range paths {
		if v := version(path); slices.Compare(v, newest) > 0 {
			best, newest = path, v
		}
	}
	return best
}

var versionPattern = regexp.MustCompile(`\d+(\.\d+)*`)

// versionNumbers are those of the first version in the text: 15 and 14 for "postgres (PostgreSQL) 15.14".
func versionNumbers(text string) []int {
	var v []int
	for part := range strings.SplitSeq(versionPattern.FindString(text), ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		v = append(v, n)
	}
	return v
}
