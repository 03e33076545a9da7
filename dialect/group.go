package dialect

// GroupSettlements returns the positions of settlements in groups that one
// statement can serve: the same verdict on leases of one token. The order of
// the groups is that of their first members.
func GroupSettlements(settlements []Settlement) [][]int {
	type key struct {
		token   int64
		verdict Verdict
	}
	var groups [][]int
	index := map[key]int{}
	for i, s := range settlements {
		k := key{s.Token, s.Verdict}
		g, ok := index[k]
		if !ok {
			g = len(groups)
			index[k] = g
			groups = append(groups, nil)
		}
		groups[g] = append(groups[g], i)
	}
	return groups
}
