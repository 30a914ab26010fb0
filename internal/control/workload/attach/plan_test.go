package attach

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlans(t *testing.T) {
	now := time.Unix(10000, 0)
	vol := volume{PV: "pv", Driver: "d", Handle: "h"}
	node := func(ready v1.ConditionStatus, inUse bool, taint string) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
			Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}},
				VolumesAttached: []v1.AttachedVolume{{Name: vol.Unique()}}}}
		if inUse {
			n.Status.VolumesInUse = []v1.UniqueVolumeName{vol.Unique()}
		}
		if taint != "" {
			n.Spec.Taints = []v1.Taint{{Key: taint}}
		}
		return n
	}
	have := func(idle time.Duration) []have {
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		a.Status.Attached = true
		return []have{{VolumeAttachment: a, Volume: vol, IdleSince: now.Add(-idle)}}
	}
	want := map[string]volume{"pv": vol}
	for name, c := range map[string]struct {
		in   input
		want string
	}{
		"wanted":           {input{Node: node("True", false, ""), Want: want}, "attach pv; attached 0"},
		"wanted and there": {input{Node: node("True", true, ""), Want: want, Have: have(0)}, "attached 1"},
		"held elsewhere": {input{Node: node("True", false, ""), Want: want, Elsewhere: map[string]string{"pv": "m"}},
			"refused pv by m; attached 0"},
		"done with":               {input{Node: node("True", false, ""), Have: have(0)}, "detach a; attached 0"},
		"still mounted":           {input{Node: node("True", true, ""), Have: have(time.Hour)}, "attached 1"},
		"mounted, node just lost": {input{Node: node("Unknown", true, ""), Have: have(time.Minute)}, "attached 1; again in 5m0s"},
		"mounted, node long lost": {input{Node: node("Unknown", true, ""), Have: have(7 * time.Minute)},
			"detach a; forced timeout; attached 0"},
		"mounted, out of service": {input{Node: node("Unknown", true, v1.TaintNodeOutOfService), Have: have(0)},
			"detach a; forced out-of-service; attached 0"},
		"out of service but ready": {input{Node: node("True", true, v1.TaintNodeOutOfService), Have: have(0)}, "attached 1"},
		"node gone":                {input{Have: have(0)}, "detach a; attached 0"},
	} {
		c.in.Name, c.in.Now = "n", now
		p := makePlan(c.in)
		var got []string
		for _, v := range p.Attach {
			got = append(got, "attach "+v.PV)
		}
		for pv, n := range p.Refused {
			got = append(got, "refused "+pv+" by "+n)
		}
		for _, a := range p.Detach {
			got = append(got, "detach "+a.Name)
		}
		if p.Forced != "" {
			got = append(got, "forced "+p.Forced)
		}
		got = append(got, fmt.Sprintf("attached %d", len(p.Attached)))
		if p.Wake > 0 {
			got = append(got, "again in "+p.Wake.String())
		}
		if s := strings.Join(got, "; "); s != c.want {
			t.Errorf("%s: %s, want %s", name, s, c.want)
		}
	}
}
