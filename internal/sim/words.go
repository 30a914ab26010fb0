package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// count is a number of things in words: "1 node", "3,000 pods".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return thousands(n) + " " + thing + "s"
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	if n < 0 {
		return "-" + thousands(-n)
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// stamp is a virtual time as the timeline writes it: 00:05:50.2.
func stamp(d duration) string {
	t := d.D().Round(100 * time.Millisecond)
	return fmt.Sprintf("%02d:%02d:%04.1f", int(t.Hours()), int(t.Minutes())%60, (t % time.Minute).Seconds())
}

// short is a duration with no more digits than it is worth.
func short(d duration) string {
	t := d.D()
	switch {
	case t < 100*time.Second:
		return t.Round(100 * time.Millisecond).String()
	case t < 100*time.Minute:
		t = t.Round(time.Second)
	default:
		t = t.Round(time.Minute)
	}
	s := t.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
