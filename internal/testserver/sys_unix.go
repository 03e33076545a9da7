//go:build unix

package testserver

import (
	"os/exec"
	"syscall"
)

// posix systems have the signals and the shell that daemons and watchdogs need.
const posix = true

// detach makes cmd run in a session of its own, where no signal from the terminal reaches it, and as
// its owner.
func detach(cmd *exec.Cmd, as *owner) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if as != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: as.uid, Gid: as.gid}
	}
}
