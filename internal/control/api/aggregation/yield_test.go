package aggregation

import (
	"slices"
	"strings"
	"testing"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

func TestYield(t *testing.T) {
	own := local([]Group{{Name: "metrics.k8s.io", Versions: []string{"v1", "v1beta1"}}})
	const v1, beta = "v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"
	for name, c := range map[string]struct {
		have map[string]string // name -> ours or theirs
		want string
	}{
		"first start":                 {nil, "+" + v1 + " +" + beta},
		"all there":                   {map[string]string{v1: "ours", beta: "ours"}, ""},
		"one deleted":                 {map[string]string{beta: "ours"}, "+" + v1},
		"theirs in place of one":      {map[string]string{v1: "ours", beta: "theirs"}, "-" + v1},
		"theirs alone":                {map[string]string{beta: "theirs"}, ""},
		"theirs in place of both":     {map[string]string{v1: "theirs", beta: "theirs"}, ""},
		"theirs gone, ours come back": {map[string]string{}, "+" + v1 + " +" + beta},
	} {
		have := map[string]*apiregistrationv1.APIService{}
		for n, whose := range c.have {
			s := &apiregistrationv1.APIService{}
			s.Name = n
			if whose == "theirs" {
				s.Spec.Service = &apiregistrationv1.ServiceReference{Name: "metrics-server"}
			}
			have[n] = s
		}
		create, remove := planYield(have, own)
		var got []string
		for _, s := range create {
			got = append(got, "+"+s.Name)
		}
		for _, s := range remove {
			got = append(got, "-"+s.Name)
		}
		slices.Sort(got)
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s: %q, want %q", name, g, c.want)
		}
	}
}
