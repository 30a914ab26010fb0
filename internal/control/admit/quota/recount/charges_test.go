package recount

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func pods(n string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourcePods: resource.MustParse(n)}
}

// TestACountKeepsWhatIsOnItsWay: between the charge and its object a count
// finds nothing, and must not give the charge back.
func TestACountKeepsWhatIsOnItsWay(t *testing.T) {
	for name, tt := range map[string]struct {
		counted, told, pending, want string
		again                        bool
	}{
		"nothing on its way":               {"1", "3", "0", "1", false},
		"charged, not stored":              {"0", "1", "1", "1", true},
		"charged, not stored, others gone": {"2", "5", "1", "3", true},
		"charged and stored":               {"1", "1", "1", "1", false},
		"never more than the status says":  {"2", "3", "5", "3", true},
		"more than the status says":        {"4", "3", "1", "4", false},
	} {
		used, again := withPending(pods(tt.counted), pods(tt.told), pods(tt.pending))
		if got := used[corev1.ResourcePods]; got.Cmp(resource.MustParse(tt.want)) != 0 || (again > 0) != tt.again {
			t.Errorf("%s: %s, again %v, want %s, %v", name, got.String(), again, tt.want, tt.again)
		}
	}
}

func TestChargesPass(t *testing.T) {
	var c charges
	start := time.Unix(1000, 0)
	c.seen("ns/q", pods("0"), pods("2"), start)
	c.seen("ns/q", pods("2"), pods("1"), start)
	c.seen("ns/q", pods("1"), pods("2"), start.Add(time.Second))
	for after, want := range map[time.Duration]string{-time.Second: "3", 0: "1", time.Second: "0"} {
		var one charges
		one.last = map[string][]charge{"ns/q": append([]charge(nil), c.last["ns/q"]...)}
		sum := one.since("ns/q", start.Add(after))[corev1.ResourcePods]
		if sum.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("after %s: %s, want %s", after, sum.String(), want)
		}
	}
	if c.since("ns/q", start.Add(time.Hour)); len(c.last) != 0 {
		t.Errorf("kept %v", c.last)
	}
}
