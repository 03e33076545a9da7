package queue

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

var seeds = []string{
	"", "a", " a", "a ", `"`, `'`, `\`, `{a,"b"}`, "NULL", "\x00", "a\x00b", "\xff", "a\xc3\x28", "\xed\xa0\x80", "é", "e\u0301", "😀", "\u202eabc", "\ufeff",
	"\u0085", "\u2028", "\U0010ffff", "\ufffd", `a"; DROP TABLE x; --`, `[{"attempt":1,"error":"x"}]`, `{"a":"b"}`, `null`, `[null]`, "[[[[", strings.Repeat("é", 3000),
}

// FuzzNames: a name that is taken is text that every database stores and
// compares as it is; one that is refused is refused in clear words.
func FuzzNames(f *testing.F) {
	for _, s := range seeds {
		f.Add(s, 128)
	}
	f.Add("abc", 2)
	f.Fuzz(func(t *testing.T, s string, max int) {
		max = max&0xff + 1
		err := checkText("Field", s, max)
		if err == nil {
			if s == "" || len(s) > max || !utf8.ValidString(s) || strings.TrimSpace(s) != s || strings.ContainsFunc(s, unicode.IsControl) {
				t.Fatalf("%q was taken", s)
			}
			return
		}
		var field *FieldError
		if !errors.Is(err, ErrInvalid) || !errors.As(err, &field) || field.Field != "Field" || field.Remedy == "" {
			t.Fatalf("%q: %#v", s, err)
		}
		if text := err.Error(); len(text) > 600 || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			t.Fatalf("%q: the error is no plain text: %q", s, text)
		}
	})
}

// FuzzHeaders: headers come back as they were, or are refused.
func FuzzHeaders(f *testing.F) {
	for i, s := range seeds {
		f.Add(s, seeds[len(seeds)-1-i], "k", "v")
	}
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		h := map[string]string{k1: v1, k2: v2}
		text, err := encodeHeaders(h)
		if err != nil {
			var field *FieldError
			if !errors.As(err, &field) || field.Field != "NewJob.Headers" {
				t.Fatalf("%q: %v", h, err)
			}
			return
		}
		if len(text) > MaxHeaderBytes || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r == 0 }) {
			t.Fatalf("%q became %q", h, text)
		}
		back, err := decodeHeaders(text)
		if err != nil || !maps.Equal(back, h) {
			t.Fatalf("%q came back as %q, %v", h, back, err)
		}
	})
}

// FuzzDecodeHeaders: whatever is in the table, decoding ends in headers or an
// error.
func FuzzDecodeHeaders(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := decodeHeaders(s)
		if err != nil && h != nil {
			t.Fatalf("%q: both %v and %v", s, h, err)
		}
	})
}

// FuzzErrors: a failure can be appended to any history, and the result is
// bounded, storable and ends with it.
func FuzzErrors(f *testing.F) {
	for i, s := range seeds {
		f.Add(s, seeds[len(seeds)-1-i], i, "node")
	}
	f.Add(`[`+strings.Repeat(`{"attempt":1,"error":"x"},`, 30)+`{}]`, "new", 31, "")
	f.Fuzz(func(t *testing.T, history, text string, attempt int, node string) {
		entry := AttemptError{Attempt: attempt, At: time.UnixMilli(1e12).UTC(), Node: clipText(node, 100), Error: text}
		got := appendError(history, entry)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) || !json.Valid([]byte(got)) {
			t.Fatalf("%q and %q became %q", history, text, got)
		}
		errs := decodeErrors(got)
		before := decodeErrors(history)
		if want := min(len(before)+1, MaxErrors); len(errs) != want {
			t.Fatalf("%d entries and one became %d", len(before), len(errs))
		}
		last := errs[len(errs)-1]
		if last.Attempt != attempt || !last.At.Equal(entry.At) || last.Node != entry.Node {
			t.Fatalf("%+v came back as %+v", entry, last)
		}
		if len(text) <= MaxErrorBytes && last.Error != strings.ToValidUTF8(text, "\ufffd") {
			t.Fatalf("%q came back as %q", text, last.Error)
		}
		if len(last.Error) > 3*MaxErrorBytes+100 {
			t.Fatalf("a text of %d bytes was kept as %d", len(text), len(last.Error))
		}
	})
}

// FuzzClipText: any text becomes valid UTF-8 of bounded length, and stays as it
// is where it can.
func FuzzClipText(f *testing.F) {
	for i, s := range seeds {
		f.Add(s, i)
	}
	f.Fuzz(func(t *testing.T, s string, max int) {
		max = max&0xfff + utf8.UTFMax
		got := clipText(s, max)
		if !utf8.ValidString(got) {
			t.Fatalf("%q became %q", s, got)
		}
		switch {
		case len(s) <= max && utf8.ValidString(s) && got != s:
			t.Fatalf("%q became %q", s, got)
		case utf8.ValidString(s) && len(got) > max+40, len(got) > 3*max+40:
			t.Fatalf("a text of %d bytes became %d, the limit is %d", len(s), len(got), max)
		}
	})
}

// FuzzKind: a typed payload comes back as it was.
func FuzzKind(f *testing.F) {
	type payload struct {
		S string
		B []byte
		N int64
	}
	for i, s := range seeds {
		f.Add(s, []byte(s), int64(i))
	}
	kind := Kind[payload]{Name: "k"}
	f.Fuzz(func(t *testing.T, s string, b []byte, n int64) {
		job, err := kind.New("q", payload{s, b, n})
		if err != nil {
			t.Fatal(err)
		}
		back, err := kind.Decode(&Job{Kind: job.Kind, Payload: job.Payload})
		if err != nil || back.S != strings.ToValidUTF8(s, "\ufffd") && utf8.ValidString(s) || string(back.B) != string(b) || back.N != n {
			t.Fatalf("%q, %q, %d came back as %+v, %v", s, b, n, back, err)
		}
		if _, err := kind.Decode(&Job{Kind: "k", Payload: b}); err == nil && !json.Valid(b) {
			t.Fatalf("%q was decoded", b)
		}
		if _, err := kind.Decode(&Job{Kind: "other", Payload: job.Payload}); err == nil {
			t.Fatal("another kind's job was decoded")
		}
	})
}
