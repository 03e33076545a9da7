package queue

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestCheckText(t *testing.T) {
	for text, ok := range map[string]bool{
		"a": true, "A b": true, "é": true, "😀": true, `"'\`: true, "{}": true, "\ufeff": true, "a\u200b": true, "\U0010ffff": true,
		strings.Repeat("x", 10): true, strings.Repeat("é", 5): true, "\ufffd": true,
		"": false, " ": false, " a": false, "a ": false, "\u00a0": false, "a\n": false, "a\x00": false, "a\u0085b": false, "\x7f": false,
		"\xff": false, "\xed\xa0\x80": false, strings.Repeat("x", 11): false, strings.Repeat("é", 6): false,
	} {
		err := checkText("F", text, 10)
		if (err == nil) != ok {
			t.Errorf("%q: %v, want ok: %t", text, err, ok)
		}
	}
}

func TestFieldError(t *testing.T) {
	err := invalid("Options.Shards", -1, "use more")
	if got, want := err.Error(), "queue: Options.Shards = -1: use more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(err, ErrInvalid) || errors.Is(err, ErrNotFound) || !errors.Is(fmt.Errorf("wrapped: %w", err), ErrInvalid) {
		t.Error("it is not ErrInvalid, or is something else, too")
	}
	var field *FieldError
	if !errors.As(fmt.Errorf("wrapped: %w", err), &field) || field.Field != "Options.Shards" || field.Value != "-1" || field.Remedy != "use more" {
		t.Errorf("got %+v", field)
	}
	for value, want := range map[any]string{
		"a\x00\"é": `"a\x00\"\u00e9"`, strings.Repeat("x", 61): `"` + strings.Repeat("x", 60) + `\u2026"`,
		time.Second: "1s", 1.5: "1.5", true: "true",
	} {
		errors.As(invalid("F", value, "r"), &field)
		if field.Value != want {
			t.Errorf("%v is shown as %s, want %s", value, field.Value, want)
		}
	}
}

func TestBatchError(t *testing.T) {
	lost := fmt.Errorf("queue: job 7: %w", ErrLeaseLost)
	err := &BatchError{Errs: []error{nil, lost, nil, fmt.Errorf("queue: job 9: %w", ErrLeaseBusy)}}
	if got, want := err.Error(), "queue: 2 of 4 jobs: job 7: lease lost"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(err, ErrLeaseLost) || !errors.Is(err, ErrLeaseBusy) || errors.Is(err, ErrNotFound) {
		t.Error("errors.Is does not look into it")
	}
	if got := err.Unwrap(); len(got) != 2 || got[0] != lost {
		t.Errorf("unwrapped %v", got)
	}
}

func TestRanges(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		ok   bool
	}{
		{"lease", checkLease("f", MinLease), true}, {"lease", checkLease("f", MaxLease), true},
		{"lease", checkLease("f", MinLease-1), false}, {"lease", checkLease("f", MaxLease+1), false}, {"lease", checkLease("f", 0), false},
		{"delay", checkDelay("f", 0), true}, {"delay", checkDelay("f", MaxDelay), true},
		{"delay", checkDelay("f", -1), false}, {"delay", checkDelay("f", MaxDelay+1), false},
		{"priority", checkPriority("f", MinPriority), true}, {"priority", checkPriority("f", MaxPriority), true},
		{"priority", checkPriority("f", MinPriority-1), false}, {"priority", checkPriority("f", MaxPriority+1), false},
		{"count", checkCount("f", 1, 5), true}, {"count", checkCount("f", 5, 5), true},
		{"count", checkCount("f", 0, 5), false}, {"count", checkCount("f", 6, 5), false},
		{"run at", checkRunAt("f", time.Unix(0, 0).UTC()), true}, {"run at", checkRunAt("f", time.Date(9000, 12, 31, 0, 0, 0, 0, time.UTC)), true},
		{"run at", checkRunAt("f", time.Time{}), false}, {"run at", checkRunAt("f", time.Date(9001, 1, 1, 0, 0, 0, 0, time.UTC)), false},
	} {
		if (c.err == nil) != c.ok {
			t.Errorf("%s: %v, want ok: %t", c.name, c.err, c.ok)
		}
	}
	for d, want := range map[time.Duration]time.Duration{-1: 0, 0: 0, time.Hour: time.Hour, MaxDelay: MaxDelay, MaxDelay + 1: MaxDelay, 1<<63 - 1: MaxDelay, -1 << 63: 0} {
		if got := clipDelay(d); got != want {
			t.Errorf("%v is clipped to %v, want %v", d, got, want)
		}
	}
}

func TestDefaultBackoff(t *testing.T) {
	for attempt, want := range map[int]time.Duration{-5: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 12: 2048 * time.Second, 13: time.Hour, 1000: time.Hour, 1 << 40: time.Hour} {
		seen := map[time.Duration]bool{}
		for range 200 {
			d := DefaultBackoff(attempt)
			if d < want*3/4 || d > want*5/4 {
				t.Fatalf("attempt %d: %v, want %v and a quarter more or less", attempt, d, want)
			}
			seen[d] = true
		}
		if len(seen) < 100 {
			t.Errorf("attempt %d: only %d different delays", attempt, len(seen))
		}
	}
	for attempt := range 100 {
		if d := retryDelay(attempt); d < 250*time.Microsecond || d > 200*time.Millisecond {
			t.Errorf("retry %d waits %v", attempt, d)
		}
	}
}

func TestClipText(t *testing.T) {
	for _, c := range []struct {
		text string
		max  int
		want string
	}{
		{"", 5, ""}, {"abcde", 5, "abcde"}, {"abcdef", 5, "abcde… (1 bytes more)"}, {"abcdé", 5, "abcd… (2 bytes more)"},
		{"a\xffb", 5, "a\ufffdb"}, {"😀😀", 6, "😀… (4 bytes more)"}, {"\xff\xff\xff\xff\xff\xff\xff", 5, "\ufffd… (2 bytes more)"},
	} {
		if got := clipText(c.text, c.max); got != c.want {
			t.Errorf("%q at %d: got %q, want %q", c.text, c.max, got, c.want)
		}
	}
}

func TestDamagedHistory(t *testing.T) {
	for _, damaged := range []string{"x", "{", `{"a":1}`, `[1]`, "\x00", "null x"} {
		got := decodeErrors(damaged)
		if len(got) != 1 || !strings.Contains(got[0].Error, "could not be decoded") {
			t.Errorf("%q: got %+v", damaged, got)
		}
		// A failure on top of it is kept.
		errs := decodeErrors(appendError(damaged, AttemptError{Attempt: 2, Error: "new"}))
		if len(errs) != 2 || errs[1].Error != "new" || errs[1].Attempt != 2 {
			t.Errorf("%q: got %+v", damaged, errs)
		}
	}
	if got := decodeErrors(""); got != nil {
		t.Errorf("got %v", got)
	}
}

func TestDigest(t *testing.T) {
	q := &Queue{}
	q.options, _ = (*Options)(nil).defaults()
	of := func(jobs ...NewJob) string {
		p, err := q.newPush(jobs, &PushOptions{PushID: "id"})
		if err != nil {
			t.Fatal(err)
		}
		return p.digest
	}
	base := NewJob{Queue: "q", Kind: "k", Payload: []byte("p"), Headers: map[string]string{"a": "1", "b": "2", "c": "3"}}
	want := of(base)
	for range 20 { // maps have no order
		if got := of(base); got != want {
			t.Fatal("the same push has two digests")
		}
	}
	// What each process fills in does not count, nor how a value is written.
	q.options.MaxAttempts++
	if of(base) != want {
		t.Error("the digest depends on the options")
	}
	q.options.MaxAttempts--
	at := time.Now()
	for name, same := range map[string][2]NewJob{
		"a time in another zone": {{Queue: "q", Kind: "k", RunAt: at}, {Queue: "q", Kind: "k", RunAt: at.Round(0).In(time.FixedZone("", 3600))}},
		"no payload":             {{Queue: "q", Kind: "k"}, {Queue: "q", Kind: "k", Payload: []byte{}}},
		"no headers":             {{Queue: "q", Kind: "k"}, {Queue: "q", Kind: "k", Headers: map[string]string{}}},
	} {
		if of(same[0]) != of(same[1]) {
			t.Errorf("%s: the same push has two digests", name)
		}
	}
	seen := map[string]string{"base": want}
	for name, change := range map[string]func(*NewJob){
		"queue": func(j *NewJob) { j.Queue = "r" }, "kind": func(j *NewJob) { j.Kind = "l" }, "payload": func(j *NewJob) { j.Payload = nil },
		"headers": func(j *NewJob) { j.Headers = nil }, "priority": func(j *NewJob) { j.Priority = 1 }, "delay": func(j *NewJob) { j.Delay = 1 },
		"run at": func(j *NewJob) { j.RunAt = time.Unix(1, 0) }, "attempts": func(j *NewJob) { j.MaxAttempts = 3 },
		"unique key": func(j *NewJob) { j.UniqueKey = "u" }, "lease": func(j *NewJob) { j.Lease = time.Hour },
		"queue and kind": func(j *NewJob) { j.Queue, j.Kind = "k", "q" },
	} {
		j := base
		change(&j)
		seen[name] = of(j)
	}
	seen["twice"] = of(base, base)
	distinct := map[string]string{}
	for name, d := range seen {
		if other, ok := distinct[d]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		distinct[d] = name
	}
}

func TestOptionsDefaults(t *testing.T) {
	a, err := (*Options)(nil).defaults()
	if err != nil {
		t.Fatal(err)
	}
	b, err := (&Options{}).defaults()
	if err != nil {
		t.Fatal(err)
	}
	if a.Node == b.Node || a.Node == "" || !utf8.ValidString(a.Node) || len(a.Node) > MaxNameBytes {
		t.Errorf("the default nodes are %q and %q", a.Node, b.Node)
	}
	if a.Shards != 1 || a.MaxPayload != DefaultMaxPayload || a.MaxAttempts != 10 || a.RetryBudget != 10*time.Second ||
		a.PushIDLife != 24*time.Hour || a.Backoff == nil || a.Logger == nil || a.MaxBacklog != 0 || a.KeepFinished || a.NoPrepare {
		t.Errorf("the defaults are %+v", a)
	}
}
