package model_test

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/internal/policy/model"
	"github.com/berth-dev/berth/internal/testkit/golden"
)

func web(name, ip string, local bool) model.Pod {
	return model.Pod{Key: model.Key{Namespace: "x", Name: name}, Labels: map[string]string{"app": "web"}, Local: local,
		IPs:   []netip.Addr{netip.MustParseAddr(ip)},
		Ports: []model.PodPort{{Name: model.Name{Name: "http", Proto: 6}, Value: 8080}}}
}

func np(name string, spec networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Spec: spec}
}

// TestTranscript shows what each kind of change costs the kernel.
func TestTranscript(t *testing.T) {
	named, low, high := intstr.FromString("http"), intstr.FromInt32(9000), int32(9100)
	udp := corev1.ProtocolUDP
	friends := networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}},
			{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}},
			{IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.0/24", Except: []string{"192.0.2.128/25"}}}},
		Ports: []networkingv1.NetworkPolicyPort{{Port: &named}, {Protocol: &udp, Port: &low, EndPort: &high}}}}}
	m := model.New()
	steps := []struct {
		says string
		do   func()
	}{
		{"pods without a policy", func() { m.SetPod(web("a", "10.0.0.1", true)); m.SetPod(web("b", "10.0.0.2", false)) }},
		{"a policy", func() { m.SetPolicy(np("friends", friends)) }},
		{"a pod elsewhere", func() { m.SetPod(web("c", "10.0.0.3", false)) }},
		{"a pod here", func() { m.SetPod(web("d", "10.0.0.4", true)) }},
		{"a second policy", func() { m.SetPolicy(np("none", networkingv1.NetworkPolicySpec{})) }},
		{"a namespace gets a label", func() {
			m.SetNamespace("y", nil)
			p := web("e", "10.0.1.1", false)
			p.Namespace = "y"
			m.SetPod(p)
			m.Commit()
			m.SetNamespace("y", map[string]string{"team": "a"})
		}},
		{"the first policy changes", func() {
			m.SetPolicy(np("friends", networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{}}}))
		}},
		{"a pod goes, another gets its address",
			func() { m.DeletePod(model.Key{Namespace: "x", Name: "d"}); m.SetPod(web("f", "10.0.0.4", true)) }},
		{"nothing changes", func() { m.SetPod(web("a", "10.0.0.1", true)) }},
		{"the policies go", func() {
			m.DeletePolicy(model.Key{Namespace: "x", Name: "friends"})
			m.DeletePolicy(model.Key{Namespace: "x", Name: "none"})
		}},
	}
	var got strings.Builder
	for _, s := range steps {
		s.do()
		got.WriteString("# " + s.says + "\n" + m.Commit().Text())
	}
	golden.Check(t, "testdata/transcript.txt", got.String())
}

// TestWhatCannotBeUnderstoodAllowsNothing: the rest of a policy holds.
func TestWhatCannotBeUnderstoodAllowsNothing(t *testing.T) {
	icmp, backwards, end := corev1.Protocol("ICMP"), intstr.FromInt32(90), int32(80)
	broken := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Likes"}}}
	for _, tc := range []struct {
		says string
		rule networkingv1.NetworkPolicyIngressRule
	}{
		{`cidr "nonsense"`, networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{
			{IPBlock: &networkingv1.IPBlock{CIDR: "nonsense"}}}}},
		{`except "10.0.0.300"`,
			networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8",
				Except: []string{"10.0.0.300"}}}}}},
		{"a podSelector", networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{PodSelector: broken}}}},
		{"a namespaceSelector", networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: broken}}}},
		{`protocol "ICMP"`, networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &icmp}}}},
		{"90-80", networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: &backwards, EndPort: &end}}}},
	} {
		t.Run(tc.says, func(t *testing.T) {
			m := model.New()
			m.SetPod(web("a", "10.0.0.1", true))
			m.SetPolicy(np("p", networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{tc.rule}}))
			c := m.Commit()
			if len(c.Problems) != 1 || !strings.Contains(c.Problems[0].Error(), tc.says) || !strings.Contains(c.Problems[0].Error(),
				"x/p") {
				t.Errorf("problems %v, want one that says %s", c.Problems, tc.says)
			}
			if len(c.Guard) != 1 || len(c.Add) != 1 {
				t.Errorf("the pod is not isolated, or somebody may reach it:\n%s", c.Text())
			}
		})
	}
}
