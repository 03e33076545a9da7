package sizing

import (
	"strings"
	"testing"
)

func points(rates ...float64) []Point {
	var out []Point
	for i, r := range rates {
		out = append(out, Point{Consumers: 1 << i, Rate: r, P99: 2, Pops: 1000})
	}
	return out
}

func TestRecommend(t *testing.T) {
	empty := points(300, 500)
	empty[1].EmptyPops = 500
	retried := points(300, 500)
	retried[1].Retries = 200
	for _, c := range []struct {
		name      string
		points    []Point
		consumers int
		met, room bool
		why       string
	}{
		{"the first is enough", points(5000, 9000), 1, true, true, "1 consumer took 5,000 jobs/s off the backlog, 5.0 times what is needed"},
		{"the most is told", points(5000, 9000), 1, true, true, "The most was 9,000 jobs/s, with 2."},
		{"the smallest with room", points(900, 1900, 2000, 8000), 4, true, true, "2 consumers only reached 1,900 jobs/s."},
		{"in any order", []Point{{Consumers: 8, Rate: 9000}, {Consumers: 2, Rate: 2500}, {Consumers: 1, Rate: 10}}, 2, true, true, "2 consumers took 2,500"},
		{"without room", points(900, 1500, 1510, 1505), 2, true, false, "only 1.5 times"},
		{"none, flat", points(500, 700, 690, 710), 2, false, false, "None reached 1,000 jobs/s: the most was 700, with 2 consumers. More consumers did not help"},
		{"none, still growing", points(200, 400, 800), 4, false, false, "still growing"},
		{"none, falling", points(800, 400, 200), 1, false, false, "More consumers did not help"},
		{"none, of one", points(800), 1, false, false, "measure more"},
		{"the backlog ran out", empty, 2, false, false, "50 % of its pops found nothing"},
		{"in each other's way", retried, 2, false, false, "in each other's way"},
		{"nothing", nil, 0, false, false, "Nothing was measured"},
		{"nothing but zeros", points(0, 0), 0, false, false, "Nothing was measured"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Recommend(c.points, 1000)
			if r.Consumers != c.consumers || r.Met != c.met || r.HeadRoom != c.room || !strings.Contains(r.Why, c.why) {
				t.Errorf("got %+v, want %d, %v, %v, %q", r, c.consumers, c.met, c.room, c.why)
			}
		})
	}
}
