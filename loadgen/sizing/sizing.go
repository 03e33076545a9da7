// Package sizing says how many consumers a rate needs, from what was measured.
package sizing

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sqlqueue/queue/loadgen/text"
)

// HeadRoom is how many times the wanted rate a number of consumers must have
// reached to be recommended: a queue that runs at its limit never works off a
// backlog, and other work on the database takes its share.
const HeadRoom = 2

// A Point is what so many consumers reached.
type Point struct {
	Consumers int
	Rate      float64 // jobs per second
	P99       float64 // of a cycle, in milliseconds
	Pops      int64
	EmptyPops int64
	Retries   int64
}

// A Recommendation follows from points alone.
type Recommendation struct {
	// Consumers is the number recommended: where the rate was not reached, that
	// of the best point. 0: nothing was measured.
	Consumers int
	// Met: the rate was reached. HeadRoom: with room to spare.
	Met, HeadRoom bool
	// Why is one or more sentences.
	Why string
}

// Recommend returns the smallest number of consumers that reached HeadRoom times
// the rate; else the one that came nearest.
func Recommend(points []Point, rate float64) Recommendation {
	points = slices.DeleteFunc(slices.Clone(points), func(p Point) bool { return p.Rate <= 0 })
	if len(points) == 0 {
		return Recommendation{Why: "Nothing was measured, so there is nothing to recommend."}
	}
	slices.SortFunc(points, func(a, b Point) int { return a.Consumers - b.Consumers })
	best := best(points)
	for i, p := range points {
		if p.Rate < HeadRoom*rate {
			continue
		}
		why := fmt.Sprintf("%s took %s jobs/s off the backlog, %s times what is needed (%d times is asked for, as head room), with 99 of 100 cycles within %s ms.",
			consumers(p), text.Int(p.Rate), text.Factor(p.Rate/rate), HeadRoom, text.Millis(p.P99))
		if i > 0 {
			prev := points[i-1]
			why += fmt.Sprintf(" %s only reached %s jobs/s.", consumers(prev), text.Int(prev.Rate))
		} else if p.Consumers > 1 {
			why += " Fewer were not measured."
		}
		if best.Consumers != p.Consumers && best.Rate > 1.2*p.Rate {
			why += fmt.Sprintf(" The most was %s jobs/s, with %d.", text.Int(best.Rate), best.Consumers)
		}
		return Recommendation{Consumers: p.Consumers, Met: true, HeadRoom: true, Why: why}
	}
	r := Recommendation{Consumers: best.Consumers, Met: best.Rate >= rate}
	if r.Met {
		r.Why = fmt.Sprintf("%s reached the most, %s jobs/s: enough, but only %s times what is needed, where %d times is asked for, as head room.",
			consumers(best), text.Int(best.Rate), text.Factor(best.Rate/rate), HeadRoom)
	} else {
		r.Why = fmt.Sprintf("None reached %s jobs/s: the most was %s, with %s.",
			text.Int(rate), text.Int(best.Rate), strings.ToLower(consumers(best)))
	}
	r.Why += " " + limit(points, best)
	return r
}

// best is the point of the highest rate; among those that come within 5 % of
// it, which is less than such runs differ by, the one of the fewest consumers.
func best(points []Point) Point {
	top := slices.MaxFunc(points, func(a, b Point) int {
		if a.Rate < b.Rate {
			return -1
		}
		return 1
	})
	for _, p := range points {
		if p.Rate >= 0.95*top.Rate {
			return p
		}
	}
	return top
}

// limit says what the points show of what is in the way, and no more than that.
func limit(points []Point, best Point) string {
	last := points[len(points)-1]
	switch {
	case best.Pops > 0 && float64(best.EmptyPops) > 0.2*float64(best.Pops):
		return fmt.Sprintf("%s of its pops found nothing, so the backlog was too small to tell: measure with more -jobs.", text.Percent(float64(best.EmptyPops)/float64(best.Pops)))
	case best.Pops > 0 && float64(best.Retries) > 0.05*float64(best.Pops):
		return "Many transactions had to be retried: the consumers are in each other's way, and more of them would not help; a larger -batch would."
	case len(points) == 1:
		return "One number of consumers does not show what limits it: measure more."
	case best.Consumers == last.Consumers && last.Rate > 1.1*points[len(points)-2].Rate:
		return "The rate was still growing with the number of consumers: measure with more of them, or with a larger -batch."
	}
	return "More consumers did not help: the limit is the database (its commits, its disk, its processors), or this machine. A larger -batch needs fewer commits."
}

func consumers(p Point) string {
	if p.Consumers == 1 {
		return "1 consumer"
	}
	return fmt.Sprintf("%d consumers", p.Consumers)
}
