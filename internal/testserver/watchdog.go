package testserver

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// A watchdog is a shell that outlives this process, if only to clean up after it. It reads lines from
// a pipe whose other end this process alone holds; when that closes, for whatever reason, it runs its
// script with the last line in $last.
type watchdog struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// startWatchdog starts one; the script finds args as its positional parameters.
func startWatchdog(script string, args ...string) (*watchdog, error) {
	const wait = "last=; while read -r line; do last=$line; done\n"
	cmd := exec.Command("sh", append([]string{"-c", wait + script, "watchdog"}, args...)...)
	detach(cmd, nil)
	cmd.Dir = os.TempDir()
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the watchdog: %w", err)
	}
	return &watchdog{cmd, pipe}, nil
}

// tell sets the script's $last.
func (w *watchdog) tell(last string) error {
	_, err := fmt.Fprintln(w.pipe, last)
	return err
}

// close lets the script run, and waits for it.
func (w *watchdog) close(ctx context.Context) error {
	err := w.pipe.Close()
	stop := context.AfterFunc(ctx, func() { w.cmd.Process.Kill() })
	defer stop()
	if wait := w.cmd.Wait(); err == nil && wait != nil {
		err = fmt.Errorf("the watchdog: %w", wait)
	}
	return err
}
