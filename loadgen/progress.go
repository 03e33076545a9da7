package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/sqlqueue/queue/bench"
	"github.com/sqlqueue/queue/loadgen/text"
)

// A progress shows how far the run is, on a terminal; else it does nothing.
type progress struct {
	w         io.Writer
	bar       *progressbar.ProgressBar
	at        int // the step
	consumers int
}

// Each step is so many parts of the bar, of which filling takes some.
const (
	parts     = 1000
	fillParts = 250
)

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &progress{}
	}
	return &progress{w: w}
}

func (p *progress) begin(steps int) {
	if p.w == nil {
		return
	}
	p.bar = progressbar.NewOptions(steps*parts,
		progressbar.OptionSetWriter(p.w),
		progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionThrottle(50*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
}

func (p *progress) step(i, consumers int) {
	p.at, p.consumers = i, consumers
	p.set(0, "preparing")
}

func (p *progress) filled(done, of int) {
	if p.bar == nil || of == 0 {
		return
	}
	// Only the first filling moves the bar.
	p.set(fillParts*done/of, fmt.Sprintf("filling, %s jobs", text.Int(float64(done))))
}

func (p *progress) measured(sofar bench.Result, of time.Duration) {
	if p.bar == nil {
		return
	}
	share := min(1, sofar.Elapsed.Seconds()/of.Seconds())
	p.set(fillParts+int(share*(parts-fillParts)), text.Int(sofar.Rate())+" jobs/s")
}

func (p *progress) set(part int, what string) {
	if p.bar == nil {
		return
	}
	p.bar.Describe(fmt.Sprintf("consumers %3d: %-22s", p.consumers, what))
	if v := p.at*parts + part; v > int(p.bar.State().CurrentNum) {
		p.bar.Set(v)
	}
}

func (p *progress) end() {
	if p.bar != nil {
		p.bar.Clear()
	}
}
