package dialecttest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sqlqueue/queue"
)

func init() {
	add("hostile: names of queues, kinds, nodes, keys and push ids", hostileNames)
	add("hostile: names that look alike stay apart", hostileAlike)
	add("hostile: names that are refused", hostileRefused)
	add("hostile: payloads", hostilePayloads)
	add("hostile: headers", hostileHeaders)
	add("hostile: error texts", hostileErrors)
}

// nasty are texts that must come back as they are.
var nasty = []string{
	`quote's "double" back\slash`, `"`, `'`, `''`, `\`, `\\`, `\'`, `\"`, `'"`, "`", `]`, `[`,
	`{}`, `{a,"b"}`, `{"a","b"}`, `{{1},{2}}`, `{"a":1}`, `[1,2]`, `NULL`, `null`, `nil`, `,`, `,,`, `(,)`, `{`, `}`,
	`$1`, `$$`, `$body$`, `:name`, `::text`, `:`, `?`, `??`, `@p1`, `%s%d%!`, `%`, `_`, `*`,
	`--`, `/*`, `*/`, `a; DROP TABLE queue_job; --`, `'); DELETE FROM queue_job; --`, `' OR '1'='1`, `"; SELECT 1; --`,
	`\x41`, `\000`, `\u0000`, `\n`, `E'\n'`, `0`, `-1`, `1e9`, `true`, `infinity`, `NaN`, `2038-01-19`,
	"naïve", "日本語", "😀👩\u200d👩\u200d👧", "שלום עולם", "\u202eabc", "a\u200bb", "\ufeffbom", "\ufffd", "\uffff", "\U0010ffff", "e\u0301", "İı",
	"a b", "a\u00a0b", strings.Repeat("x", queue.MaxNameBytes), strings.Repeat("😀", queue.MaxNameBytes/4),
}

func hostileNames(t *testing.T, e Engine) {
	f := start(t, e, nil)
	for i, name := range nasty {
		node := f.queue(f.db, &queue.Options{Node: name})
		j := queue.NewJob{Queue: name, Kind: name, UniqueKey: name, Payload: fmt.Append(nil, i)}
		opts := &queue.PushOptions{PushID: name}
		p := must(f.q.PushMany(f.ctx, []queue.NewJob{j}, opts))(f)
		sameList(f, "pushed again", must(f.q.PushMany(f.ctx, []queue.NewJob{j}, opts))(f), p)
		same(f, "a duplicate", must(f.q.Push(f.ctx, j))(f), queue.Pushed{ID: p[0].ID, Duplicate: true})
		must(f.q.PushMany(f.ctx, []queue.NewJob{j, {Queue: name, Kind: "other", Priority: -1}}, nil))(f)

		jobs := must(node.Pop(f.ctx, 1, &queue.PopOptions{Queues: []string{"unknown", name}}))(f)
		same(f, "popped of "+name, len(jobs), 1)
		same(f, "queue", jobs[0].Queue, name)
		same(f, "kind", jobs[0].Kind, name)
		same(f, "unique key", jobs[0].UniqueKey, name)
		info := f.wantState(p[0].ID, queue.Running)
		same(f, "queue", info.Queue, name)
		same(f, "kind", info.Kind, name)
		same(f, "unique key", info.UniqueKey, name)
		same(f, "node", info.Node, name)
		same(f, "payload", string(info.Payload), fmt.Sprint(i))
		same(f, "jobs of the kind", len(f.list(queue.Filter{Queue: name, Kind: name})), 1)
		s := must(f.q.Stats(f.ctx, name))(f)
		same(f, "stats", fmt.Sprint(s.Queue, s.Ready, s.Running), fmt.Sprint(name, 1, 1))
		same(f, "peeked", must(f.q.Peek(f.ctx, name, 2))(f)[0].Queue, name)
		f.must(f.q.Configure(f.ctx, name, queue.Settings{KeepFinished: ptr(1)}))

		same(f, "requeued", must(f.q.RequeueNode(f.ctx, name))(f), 1)
		held := must(node.PopID(f.ctx, p[0].ID, 0))(f)
		f.must(node.Fail(f.ctx, held, errors.New(name), &queue.FailOptions{Dead: true}))
		info = f.wantState(p[0].ID, queue.Dead)
		same(f, "node of the dead", info.Node, name)
		same(f, "error", info.Errors[0].Error, name)
		same(f, "node of the error", info.Errors[0].Node, name)
		n, _, err := f.q.Redrive(f.ctx, queue.Redrive{Queue: name, Kind: name})
		f.must(err)
		same(f, "redriven", n, 1)
		f.must(f.q.Cancel(f.ctx, p[0].ID))
		same(f, "purged", must(f.q.Purge(f.ctx, queue.Purge{Queue: name, States: []queue.State{queue.Cancelled}}))(f), 1)
	}
	want := slices.Clone(nasty)
	slices.Sort(want)
	sameList(f, "queues", must(f.q.Queues(f.ctx))(f), want)
	same(f, "jobs", len(f.list(queue.Filter{})), len(nasty))
}

func hostileAlike(t *testing.T, e Engine) {
	f := start(t, e, nil)
	alike := []string{
		"strasse", "straße", "STRASSE", "Strasse", "é", "e\u0301", "e", "E", "É", "i", "İ", "ı", "I", "a", "a\u200b", "a\u00adb", "ab", "a b", "a\u00a0b",
		"ss", "ß", "ẞ", "Å", "\u212b", "A\u030a", "ﬁ", "fi", "２", "2", "²", "a-b", "a_b", "a%b", "a.b", "a\x20\x20b",
	}
	var batch []queue.NewJob
	for _, name := range alike {
		batch = append(batch, queue.NewJob{Queue: name, Kind: name, Payload: []byte(name)}, queue.NewJob{Queue: "keys", Kind: "k", UniqueKey: name})
	}
	for i, p := range f.push(batch...) {
		if p.Duplicate {
			t.Fatalf("the key %q was taken for another", batch[i].UniqueKey)
		}
	}
	for _, name := range alike {
		same(f, "jobs of the kind "+name, len(f.list(queue.Filter{Kind: name})), 1)
		must(f.q.PushMany(f.ctx, jobs(1), &queue.PushOptions{PushID: name}))(f)
		got := f.popFrom(10, name)
		same(f, "popped of "+name, len(got), 1)
		same(f, "payload", string(got[0].Payload), name)
	}
	same(f, "jobs of as many push ids", len(f.pop(100)), len(alike))
	same(f, "jobs of as many keys", len(f.popFrom(100, "keys")), len(alike))
	want := append(slices.Clone(alike), "keys", "q")
	slices.Sort(want)
	sameList(f, "queues", must(f.q.Queues(f.ctx))(f), want)
}

// refused are texts that are no names.
var refused = []string{
	" a", "a ", "\ta", "a\n", " ", "\u00a0a", "a\u2003", "a\nb", "a\tb", "a\x00b", "\x00", "a\x7fb", "a\u0085b", "a\x1bb",
	"\xff", "a\xc3\x28", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80", "a\xe2\x82",
	strings.Repeat("x", 300), strings.Repeat("é", 150),
}

func hostileRefused(t *testing.T, e Engine) {
	f := start(t, e, nil)
	for _, name := range refused {
		for field, call := range map[string]func() error{
			"NewJob.Queue":       func() error { _, err := f.q.Push(f.ctx, queue.NewJob{Queue: name, Kind: "k"}); return err },
			"NewJob.Kind":        func() error { _, err := f.q.Push(f.ctx, queue.NewJob{Queue: "q", Kind: name}); return err },
			"NewJob.UniqueKey":   func() error { _, err := f.q.Push(f.ctx, keyed(name)); return err },
			"PushOptions.PushID": func() error { _, err := f.q.PushMany(f.ctx, jobs(1), &queue.PushOptions{PushID: name}); return err },
			"PopOptions.Queues": func() error {
				_, err := f.q.Pop(f.ctx, 1, &queue.PopOptions{Queues: []string{"q", name}})
				return err
			},
			"Options.Node": func() error { _, err := queue.New(f.db, e.Dialect, &queue.Options{Node: name}); return err },
			"node":         func() error { _, err := f.q.RequeueNode(f.ctx, name); return err },
			"Redrive.Queue": func() error {
				_, _, err := f.q.Redrive(f.ctx, queue.Redrive{Queue: name})
				return err
			},
			"Redrive.Kind": func() error { _, _, err := f.q.Redrive(f.ctx, queue.Redrive{Kind: name}); return err },
			"Purge.Queue":  func() error { _, err := f.q.Purge(f.ctx, queue.Purge{Queue: name}); return err },
		} {
			f.wantInvalid(fmt.Sprintf("%s %.20q", field, name), call(), field)
		}
		for what, call := range map[string]func() error{
			"Stats":     func() error { _, err := f.q.Stats(f.ctx, name); return err },
			"Peek":      func() error { _, err := f.q.Peek(f.ctx, name, 1); return err },
			"Pause":     func() error { return f.q.Pause(f.ctx, name) },
			"Resume":    func() error { return f.q.Resume(f.ctx, name) },
			"Configure": func() error { return f.q.Configure(f.ctx, name, queue.Settings{}) },
		} {
			f.wantInvalid(fmt.Sprintf("%s %.20q", what, name), call(), "queue")
		}
		// One bad job in many: its place is told, and none is stored.
		_, err := f.q.PushMany(f.ctx, []queue.NewJob{job("a"), job("b"), {Queue: "q", Kind: name}}, nil)
		f.wantInvalid("the third of three", err, "jobs[2].NewJob.Kind")
	}
	f.wantNothing("after all of this")
}

func hostilePayloads(t *testing.T, e Engine) {
	f := start(t, e, nil)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	random := make([]byte, queue.DefaultMaxPayload)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	bodies := [][]byte{
		nil, {}, {0}, {0, 0, 0}, {0xff}, every, slices.Repeat(every, 100), random, make([]byte, queue.DefaultMaxPayload),
		bytes.Repeat([]byte{0xff}, queue.DefaultMaxPayload), bytes.Repeat([]byte(`'"\`), queue.DefaultMaxPayload/3),
	}
	for _, s := range append(slices.Clone(nasty), refused...) {
		bodies = append(bodies, []byte(s))
	}
	var batch []queue.NewJob
	for _, b := range bodies {
		batch = append(batch, queue.NewJob{Queue: "q", Kind: "k", Payload: b})
	}
	check := func(i int, got []byte) {
		f.Helper()
		if !bytes.Equal(got, bodies[i]) {
			t.Fatalf("payload %d of %d bytes, %.40q, came back as %d bytes, %.40q", i, len(bodies[i]), bodies[i], len(got), got)
		}
	}
	single := make([]int64, len(bodies))
	for i, j := range batch {
		single[i] = f.push(j)[0].ID
	}
	many := pushedIDs(f.push(batch...))
	for _, ids := range [][]int64{single, many} {
		for i, id := range ids {
			check(i, f.info(id).Payload)
		}
		for i := 0; i < len(ids); {
			got := f.pop(min(10, len(ids)-i))
			if len(got) == 0 {
				t.Fatalf("popped nothing after %d jobs", i)
			}
			for _, j := range got {
				same(f, "id", j.ID, ids[i])
				check(i, j.Payload)
				f.must(f.q.Fail(f.ctx, j, nil, &queue.FailOptions{Dead: true}))
				i++
			}
		}
	}
	// Through the archive and back.
	for i, id := range many {
		check(i, f.info(id).Payload)
	}
	n, _, err := f.q.Redrive(f.ctx, queue.Redrive{})
	f.must(err)
	same(f, "redriven", n, 2*len(bodies))
	for i, id := range single {
		check(i, must(f.q.PopID(f.ctx, id, time.Minute))(f).Payload)
	}
}

func hostileHeaders(t *testing.T, e Engine) {
	f := start(t, e, nil)
	all := map[string]string{"": "empty name", "empty value": "", "\x00": "\x00", "nul\x00in": "a\x00b", "ctl": "\x01\x1b\n\r\t\x7f\u0085\u2028\u2029", "html": "<a href='x'>&amp;</a>"}
	for i, s := range nasty {
		all[s] = nasty[len(nasty)-1-i]
	}
	sets := []map[string]string{nil, {}, all}
	for _, s := range nasty {
		sets = append(sets, map[string]string{s: s})
	}
	var batch []queue.NewJob
	for _, h := range sets {
		batch = append(batch, queue.NewJob{Queue: "q", Kind: "k", Headers: h})
	}
	pushed := f.push(batch...)
	for i, j := range f.pop(len(sets)) {
		if !maps.Equal(j.Headers, sets[i]) {
			t.Fatalf("headers %q came back as %q", sets[i], j.Headers)
		}
		if h := f.info(pushed[i].ID).Headers; !maps.Equal(h, sets[i]) {
			t.Fatalf("headers %q came back as %q", sets[i], h)
		}
	}
	for _, bad := range []string{"\xff", "a\xc3\x28", "\xed\xa0\x80"} {
		for _, h := range []map[string]string{{bad: "v"}, {"k": bad}} {
			_, err := f.q.Push(f.ctx, queue.NewJob{Queue: "new", Kind: "k", Headers: h})
			f.wantInvalid("headers that are no text", err, "NewJob.Headers")
		}
	}
	sameList(f, "queues", must(f.q.Queues(f.ctx))(f), []string{"q"})
}

func hostileErrors(t *testing.T, e Engine) {
	f := start(t, e, nil)
	texts := append(slices.Clone(nasty), refused...)
	texts = append(texts, "", "\x00", strings.Repeat("\x00", 2000), strings.Repeat(`"\`, 2000), strings.Repeat("\xff", 2000), `{"attempt":1}`)
	var failures []queue.Failure
	f.push(jobs(len(texts))...)
	for i, j := range f.pop(len(texts)) {
		failures = append(failures, queue.Failure{Job: j, Err: errors.New(texts[i]), FailOptions: queue.FailOptions{RetryIn: -1}})
	}
	f.must(f.q.FailMany(f.ctx, failures)) // all in one statement
	for i := range failures {
		want := strings.ToValidUTF8(texts[i], "\ufffd")
		j := must(f.q.PopID(f.ctx, failures[i].Job.ID, time.Minute))(f)
		same(f, "errors", len(j.Errors), 1)
		same(f, "error", j.Errors[0].Error, want)
		f.must(f.q.Fail(f.ctx, j, errors.New(texts[i]), &queue.FailOptions{Dead: true}))
		info := f.wantState(j.ID, queue.Dead)
		same(f, "errors", len(info.Errors), 2)
		same(f, "error", info.Errors[1].Error, want)
	}
}
