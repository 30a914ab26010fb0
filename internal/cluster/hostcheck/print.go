package hostcheck

import (
	"fmt"
	"io"
)

// Print writes findings for a person.
func Print(w io.Writer, findings []Finding) {
	count := map[level]int{}
	for _, f := range findings {
		count[f.Level]++
		word := string(f.Level)
		if f.Level == Fail {
			word = "FAIL"
		}
		fmt.Fprintf(w, "%-5s %-13s %s\n", word, f.Name, f.Message)
		if f.Remedy != "" {
			fmt.Fprintf(w, "%-19s fix: %s\n", "", f.Remedy)
		}
	}
	switch {
	case count[Fail] > 0:
		fmt.Fprintf(w, "\na start would fail: %d to fix, %d warnings\n", count[Fail], count[Warn])
	default:
		fmt.Fprintf(w, "\na start would succeed: %d warnings\n", count[Warn])
	}
}
