package certificate

import (
	"encoding/json"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/controller"
)

// TestBindWritesOnlyWhatItRead: the patch of a binding names the ConfigMap's
// UID and version, so that it cannot overwrite a change that an administrator
// made meanwhile, and leaves labels and annotations alone.
func TestBindWritesOnlyWhatItRead(t *testing.T) {
	stored := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: bindingPrefix + "n", Namespace: metav1.NamespaceSystem, UID: "m",
		ResourceVersion: "7", Labels: map[string]string{bindingLabel: "true", "team": "a"}},
		Data: map[string]string{bindingKey: "10.0.0.1"}}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	client := fake.NewClientset(stored, node)
	e := controller.Env{Client: client}
	_, bound, _, err := situation(t.Context(), e, "n")
	if err != nil {
		t.Fatal(err)
	}
	if err := bind(t.Context(), e, node, bound, Host{Node: "n", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}); err != nil {
		t.Fatal(err)
	}
	if got := writes(client); len(got) != 0 {
		t.Fatalf("an address that is bound already made %v", got)
	}
	if err := bind(t.Context(), e, node, bound, Host{Node: "n", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}); err != nil {
		t.Fatal(err)
	}
	got := writes(client)
	if len(got) != 1 || got[0].GetVerb() != "patch" {
		t.Fatalf("adding an address made %v, want one patch", got)
	}
	var body struct {
		Metadata struct {
			UID             string
			ResourceVersion string
			Labels          map[string]string
		}
		Data map[string]string
	}
	if err := json.Unmarshal(got[0].(clienttesting.PatchAction).GetPatch(), &body); err != nil {
		t.Fatal(err)
	}
	if body.Metadata.UID != "m" || body.Metadata.ResourceVersion != "7" || body.Metadata.Labels != nil {
		t.Errorf("the patch has metadata %+v, want UID m, version 7 and no labels", body.Metadata)
	}
	both := hostOf("n", body.Data[bindingKey])
	if len(both.IPs) != 2 {
		t.Errorf("bound to %q, want both addresses", body.Data[bindingKey])
	}
}

// TestBindCreatesWhereNothingIs: the first binding is created and owned by the Node.
func TestBindCreatesWhereNothingIs(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	client := fake.NewClientset(node)
	e := controller.Env{Client: client}
	if err := bind(t.Context(), e, node, binding{}, Host{Node: "n", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), bindingPrefix+"n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != "u" || got.Labels[bindingLabel] == "" || got.Data[bindingKey] == "" {
		t.Errorf("%+v, want a labelled map with addresses that Node u owns", got)
	}
}

// writes are the calls that were no reads.
func writes(client *fake.Clientset) (out []clienttesting.Action) {
	for _, a := range client.Actions() {
		if a.GetVerb() != "get" && a.GetVerb() != "list" {
			out = append(out, a)
		}
	}
	return out
}
