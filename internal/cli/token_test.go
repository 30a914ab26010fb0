package cli

import (
	"strings"
	"testing"
	"time"
)

// A token that never ends is told of (finding 25).
func TestEndlessTokenIsWarnedOf(t *testing.T) {
	for ttl, want := range map[time.Duration]string{0: "never ends", time.Hour: "", -time.Second: "error"} {
		var out strings.Builder
		err := checkTTL(&out, ttl)
		if (err != nil) != (want == "error") || want != "error" && !strings.Contains(out.String(), want) || want == "" && out.Len() > 0 {
			t.Errorf("--ttl %s: %q, %v", ttl, out.String(), err)
		}
	}
}
