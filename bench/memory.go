package bench

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// peakMemory is the largest resident size of this process so far, in bytes; on
// systems without /proc, what the Go runtime has taken from them. (Getrusage
// would count what the parent held when it started this process.)
func peakMemory() int64 {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if kilobytes, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kilobytes), " kB"), 10, 64)
			if err == nil {
				return n * 1024
			}
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys)
}
