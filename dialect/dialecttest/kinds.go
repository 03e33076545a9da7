package dialecttest

import (
	"bytes"
	"encoding/gob"
	"strings"
	"testing"

	"github.com/sqlqueue/queue"
)

func init() {
	add("kind: typed payloads, by JSON and by another codec", kinds)
}

type greeting struct {
	Name  string
	Times int
	Bytes []byte
}

type gobCodec struct{}

func (gobCodec) Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func (gobCodec) Unmarshal(data []byte, v any) error {
	return gob.NewDecoder(bytes.NewReader(data)).Decode(v)
}

func kinds(t *testing.T, e Engine) {
	f := start(t, e, nil)
	want := greeting{"Zoë \x00 \"quoted\" 😀", -7, []byte{0, 255, 1}}
	for _, kind := range []queue.Kind[greeting]{{Name: "json"}, {Name: "gob", Codec: gobCodec{}}} {
		j := must(kind.New("q", want))(f)
		same(f, "queue", j.Queue, "q")
		same(f, "kind", j.Kind, kind.Name)
		f.push(j)
		got := f.popOne()
		same(f, "kind", got.Kind, kind.Name)
		back := must(kind.Decode(got))(f)
		if back.Name != want.Name || back.Times != want.Times || !bytes.Equal(back.Bytes, want.Bytes) {
			t.Fatalf("%s: %+v came back as %+v", kind.Name, want, back)
		}
		if kind.Codec == nil && !strings.HasPrefix(string(got.Payload), `{"Name":`) {
			t.Fatalf("the payload %q is not JSON", got.Payload)
		}
		// Another kind's job is not decoded, and a damaged one says so.
		other := queue.Kind[greeting]{Name: "other", Codec: kind.Codec}
		if _, err := other.Decode(got); err == nil || !strings.Contains(err.Error(), kind.Name) {
			t.Fatalf("decoded as another kind: %v", err)
		}
		got.Payload = got.Payload[:len(got.Payload)/2]
		if _, err := kind.Decode(got); err == nil {
			t.Fatal("half a payload was decoded")
		}
		f.must(f.q.Ack(f.ctx, got))
	}
	if _, err := (queue.Kind[func()]{Name: "f"}).New("q", func() {}); err == nil {
		t.Fatal("a function was encoded")
	}
}
