package dialect

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestChunks(t *testing.T) {
	sized := func(sizes ...int) []Row {
		rows := make([]Row, len(sizes))
		for i, n := range sizes {
			rows[i] = Row{Payload: make([]byte, n), MaxAttempts: i}
		}
		return rows
	}
	for _, c := range []struct {
		rows           []Row
		maxRows, bytes int
		want           []int
	}{
		{sized(1), 10, 10, []int{1}},
		{sized(1, 1, 1, 1, 1), 2, 100, []int{2, 2, 1}},
		{sized(1, 1, 1, 1), 2, 100, []int{2, 2}},
		{sized(5, 5, 1), 10, 10, []int{2, 1}},
		{sized(20, 1, 20), 10, 10, []int{1, 1, 1}}, // a row larger than the limit goes alone
		{sized(0, 0, 0), 10, 0, []int{3}},
		{sized(9, 2, 9), 10, 10, []int{1, 1, 1}},
	} {
		var got []int
		n := 0
		for _, chunk := range Chunks(c.rows, c.maxRows, c.bytes) {
			got = append(got, len(chunk))
			for _, r := range chunk {
				if r.MaxAttempts != n {
					t.Fatalf("row %d came at place %d", r.MaxAttempts, n)
				}
				n++
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d rows became %v, want %v", len(c.rows), got, c.want)
		}
	}
}

func TestGroupSettlements(t *testing.T) {
	got := GroupSettlements([]Settlement{
		{Token: 1, Verdict: Delete}, {Token: 2, Verdict: Delete}, {Token: 1, Verdict: Archive}, {Token: 1, Verdict: Delete}, {Token: 2, Verdict: Delete},
	})
	want := [][]int{{0, 3}, {1, 4}, {2}}
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestLaneOf(t *testing.T) {
	for _, lane := range []int32{1, 77, MaxLane} {
		for _, seq := range []int64{0, 1, 1<<SeqBits - 1} {
			id := int64(lane)<<SeqBits | seq
			if got := LaneOf(id); got != lane {
				t.Errorf("id %d is of lane %d, want %d", id, got, lane)
			}
			if got := LaneOf(id | DueBorn); got != lane {
				t.Errorf("id %d, born with a due time, is of lane %d, want %d", id, got, lane)
			}
			if id|DueBorn < 0 {
				t.Errorf("id %d is negative", id|DueBorn)
			}
		}
	}
}

func TestClass(t *testing.T) {
	names := map[string]bool{}
	for c := Other; c <= Denied; c++ {
		if names[c.String()] {
			t.Errorf("class %d has another one's name %q", c, c)
		}
		names[c.String()] = true
		if want := c == Deadlock || c == Serialization || c == Busy; c.Transient() != want {
			t.Errorf("%v is transient: %t", c, c.Transient())
		}
	}
}

func TestCommitError(t *testing.T) {
	cause := errors.New("x")
	err := error(&CommitError{cause})
	if err.Error() != "x" || !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestRender(t *testing.T) {
	quote := func(s string) string { return "<" + s + ">" }
	for _, c := range []struct {
		ns         Namespace
		text, want string
	}{
		{Namespace{"s", "p_"}, "{job} {bare_job_due} {schema} {prefix} {lane_1}", "<s>.<p_job> <p_job_due> <s> p_ <s>.<p_lane_1>"},
		{Namespace{"", "p_"}, "{job} {bare_x}", "<p_job> <p_x>"},
		{Namespace{"s", "p_"}, `'{}' '{"a":1}' {A} {1} { job } '{{1},{2}}'`, `'{}' '{"a":1}' {A} {1} { job } '{{1},{2}}'`},
	} {
		if got := c.ns.Render(c.text, quote); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

// FuzzNamespace: what is taken as a name is safe to put between quotes in any
// SQL; the rest is refused in clear words.
func FuzzNamespace(f *testing.F) {
	for _, s := range []string{"", "a", "queue_", "_", "1a", "A", "é", `"`, "a b", "a\x00", "a;b", strings.Repeat("a", 30), strings.Repeat("a", 31), "a\n", "{job}", "pg_x"} {
		f.Add(s, s)
		f.Add("q", s)
	}
	f.Fuzz(func(t *testing.T, schema, prefix string) {
		ns, err := Namespace{schema, prefix}.Normal("main")
		if err != nil {
			var name *NameError
			if !errors.As(err, &name) || name.Remedy == "" || (name.Field != "Schema" && name.Field != "Prefix") || len(err.Error()) > 300 {
				t.Fatalf("%q, %q: %v", schema, prefix, err)
			}
			return
		}
		for _, s := range []string{ns.Schema, ns.Prefix} {
			if s == "" || len(s) > 30 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || s[0] >= '0' && s[0] <= '9' {
				t.Fatalf("%q was taken", s)
			}
		}
		if schema != "" && ns.Schema != schema || prefix != "" && ns.Prefix != prefix {
			t.Fatalf("%q, %q became %+v", schema, prefix, ns)
		}
		again, err := ns.Normal("main")
		if err != nil || again != ns {
			t.Fatalf("%+v became %+v, %v", ns, again, err)
		}
	})
}
