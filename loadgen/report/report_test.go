package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sqlqueue/queue/bench"
)

var update = flag.Bool("update", false, "write the golden files anew")

func sample() *Report {
	r := &Report{
		Engine: "sqlite", Title: "SQLite", Version: "3.50.4", Database: "a temporary file",
		Jobs: 100_000, Batch: 10, Payload: 100, Duration: 3, TargetRate: 1000, Steps: []Step{},
	}
	return r
}

func result(jobs int64, elapsed, cycle time.Duration) bench.StepResult {
	r := bench.StepResult{Rounds: 2}
	r.Jobs, r.Elapsed, r.Latency = jobs, elapsed, &bench.Latency{}
	for i := range 100 {
		r.Latency.Record(cycle * time.Duration(i+50) / 100)
	}
	r.Pops = jobs/10 + 3
	r.EmptyPops = 3
	r.Retries = bench.Retries{Busy: 2, Deadlock: 1}
	return r
}

func TestGolden(t *testing.T) {
	full := sample()
	for i, n := range []int{1, 2, 4} {
		full.Steps = append(full.Steps, NewStep(n, n, result(int64(1200+2500*i), 3*time.Second, time.Duration(n)*2*time.Millisecond), false))
	}
	weak := sample()
	weak.Steps = append(weak.Steps, NewStep(8, 8, result(1500, 2*time.Second, 130*time.Millisecond), true))
	weak.Interrupted = true
	empty := sample()
	empty.Interrupted = true
	failed := sample()
	failed.Steps = append(failed.Steps, NewStep(1, 1, result(90_000, 3*time.Second, 150*time.Microsecond), false))
	failed.Error = "SQLite at a temporary file: disk I/O error"
	for name, r := range map[string]*Report{"full": full, "weak": weak, "empty": empty, "failed": failed} {
		r.Recommend()
		var text, object bytes.Buffer
		if err := r.Text(&text); err != nil {
			t.Fatal(err)
		}
		if err := r.JSON(&object); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".txt", text.Bytes())
		golden(t, name+".json", object.Bytes())
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s\n(go test ./loadgen/report -update)", name, got, want)
	}
}
