package services_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// TestAllocationsSurviveRestart checks that a new server on the same data knows
// what is taken, and that it repairs records that were lost.
func TestAllocationsSurviveRestart(t *testing.T) {
	dir := t.TempDir()
	small := apitest.WithConfig(func(c *api.Config) {
		c.ServiceCIDRs, c.NodePortRange = []string{"10.30.0.0/29"}, "31000-31003"
	})
	env := apitest.StartEnv(t, apitest.WithDir(dir), small)
	f := connect(env)
	taken := map[string]bool{}
	for i := range 3 {
		s := f.create(t, service(fmt.Sprintf("before-%d", i), typ(v1.ServiceTypeNodePort)))
		taken[s.Spec.ClusterIP], taken[fmt.Sprint(s.Spec.Ports[0].NodePort)] = true, true
	}
	lost := f.create(t, service("lost")).Spec.ClusterIP
	taken[lost] = true
	if err := f.NetworkingV1().IPAddresses().Delete(bg(), lost, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	env.Stop()

	f = connect(apitest.StartEnv(t, apitest.WithDir(dir), small))
	w, err := f.NetworkingV1().IPAddresses().Watch(bg(), metav1.ListOptions{FieldSelector: "metadata.name=" + lost})
	if err != nil {
		t.Fatal(err)
	}
	<-w.ResultChan() // the repair puts the record back
	w.Stop()
	s := f.create(t, service("after", typ(v1.ServiceTypeNodePort)))
	if taken[s.Spec.ClusterIP] || taken[fmt.Sprint(s.Spec.Ports[0].NodePort)] {
		t.Errorf("%s and %d were handed out again", s.Spec.ClusterIP, s.Spec.Ports[0].NodePort)
	}
	_, err = f.svc.Create(bg(), service("too-many"), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "range is full") {
		t.Errorf("a full range gave %v", err)
	}
	f.remove(t, "before-1")
	f.create(t, service("fits"))
}
