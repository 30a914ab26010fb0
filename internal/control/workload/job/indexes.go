package job

import (
	"sort"
	"strconv"
	"strings"
)

// set is a set of completion indexes.
type set map[int]bool

// parseIndexes reads "1,3-5,7"; what is not a number, or not below the limit,
// is left out.
func parseIndexes(s string, below int) set {
	out := set{}
	for _, part := range strings.Split(s, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(lo)
		if err != nil {
			continue
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(hi); err != nil {
				continue
			}
		}
		for i := a; i <= b && i < below; i++ {
			out[i] = true
		}
	}
	return out
}

// String writes the set the way the API shows it: two neighbours as "1,2",
// three or more as "1-3".
func (s set) String() string {
	list := make([]int, 0, len(s))
	for i := range s {
		list = append(list, i)
	}
	sort.Ints(list)
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		switch j - i {
		case 0:
			parts = append(parts, strconv.Itoa(list[i]))
		case 1:
			parts = append(parts, strconv.Itoa(list[i]), strconv.Itoa(list[j]))
		default:
			parts = append(parts, strconv.Itoa(list[i])+"-"+strconv.Itoa(list[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}
