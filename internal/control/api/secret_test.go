package api_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// A Secret that was made with stringData can be applied by another manager from
// the same manifest: what the first one owns is data, and no one ever owns
// stringData, which is not stored.
func TestSecretStringDataApplies(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(apitest.Start(t))
	body := []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"password":"one"}}`)
	path := "/api/v1/namespaces/default/secrets"
	if out, err := client.CoreV1().RESTClient().Post().AbsPath(path).Param("fieldManager",
		"first").Body(body).DoRaw(t.Context()); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	made, err := client.CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if string(made.Data["password"]) != "one" {
		t.Errorf("the data is %q", made.Data)
	}
	if fields := string(made.ManagedFields[0].FieldsV1.Raw); !strings.Contains(fields, "f:data") ||
		strings.Contains(fields, "f:stringData") {
		t.Errorf("the first manager owns %s, want f:data and no f:stringData", fields)
	}
	applied, err := client.CoreV1().Secrets("default").Patch(t.Context(), "s", types.ApplyPatchType,
		[]byte(strings.Replace(string(body), "one", "two", 1)), metav1.PatchOptions{FieldManager: "second"})
	if err != nil {
		t.Fatalf("applying the same manifest: %v", err)
	}
	if string(applied.Data["password"]) != "two" || applied.StringData != nil {
		t.Errorf("after the apply: data %q, stringData %q", applied.Data, applied.StringData)
	}
}
