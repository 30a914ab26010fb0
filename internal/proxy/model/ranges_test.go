package model

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestSourceRangesLimitBothFamilies: ranges of one family do not leave the
// other one open to everybody.
func TestSourceRangesLimitBothFamilies(t *testing.T) {
	ten := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, test := range []struct {
		kind    corev1.ServiceType
		ranges  []string
		family  Family
		want    []netip.Prefix
		limited bool
	}{
		{corev1.ServiceTypeLoadBalancer, []string{"10.0.0.0/8"}, V4, ten, true},
		{corev1.ServiceTypeLoadBalancer, []string{"10.0.0.0/8"}, V6, nil, true},
		{corev1.ServiceTypeLoadBalancer, []string{"2001:db8::/32"}, V4, nil, true},
		{corev1.ServiceTypeLoadBalancer, []string{"10.0.0.0/8", "::/0"}, V6, nil, false},
		{corev1.ServiceTypeLoadBalancer, []string{"10.0.0.0/8", "::/0"}, V4, ten, true},
		{corev1.ServiceTypeLoadBalancer, []string{"0.0.0.0/0"}, V6, nil, false},
		{corev1.ServiceTypeLoadBalancer, nil, V6, nil, false},
		{corev1.ServiceTypeNodePort, []string{"10.0.0.0/8"}, V6, nil, false},
	} {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Type: test.kind, LoadBalancerSourceRanges: test.ranges}}
		got, limited := sourceRanges(s, test.family)
		if !slices.Equal(got, test.want) || limited != test.limited {
			t.Errorf("%s %v for %v: %v, %v", test.kind, test.ranges, test.family, got, limited)
		}
	}
}
