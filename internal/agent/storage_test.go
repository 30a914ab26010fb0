package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"
)

// run runs a command in the only container of a pod.
func (c *cluster) run(p *v1.Pod, cmd ...string) string {
	c.Helper()
	id := bareID(p.Status.ContainerStatuses[0].ContainerID)
	out, code, err := c.agent.exec(c.ctx, id, cmd, 10*time.Second)
	if err != nil || code != 0 {
		c.Fatalf("%v ended with %d, %v: %s", cmd, code, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestStorage: what a pod's volumes, environment and identity are from inside
// a real container, and that changes get there while it runs.
func TestStorage(t *testing.T) {
	c := newCluster(t)
	c.api.PrependReactor("create", "serviceaccounts", func(a ktesting.Action) (bool, runtime.Object, error) {
		return true, &authentication.TokenRequest{Status: authentication.TokenRequestStatus{
			Token: "the-token", ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
		}}, nil
	})
	c.api.PrependReactor("create", "selfsubjectaccessreviews", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, &authorization.SelfSubjectAccessReview{}, nil // denied, as to any node
	})
	cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings", ResourceVersion: "1"},
		Data: map[string]string{"color": "red"}}
	sec := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "creds", ResourceVersion: "2"},
		Data: map[string][]byte{"password": []byte("hunter2")}}
	if _, err := c.api.CoreV1().ConfigMaps("default").Create(c.ctx, cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.api.CoreV1().Secrets("default").Create(c.ctx, sec, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	host := t.TempDir()
	group, user := int64(3000), int64(1000)
	c.create("store", "while true; do sleep 3600; done", func(p *v1.Pod) {
		p.Labels = map[string]string{"tier": "one"}
		p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group, RunAsUser: &user}
		p.Spec.Volumes = []v1.Volume{
			{Name: "mem", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
			{Name: "cm", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{
				Name: "settings"}}}},
			{Name: "sec", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "creds"}}},
			{Name: "token", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
				Sources: []v1.VolumeProjection{{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}}}}}},
			{Name: "info", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
				{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}},
			{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}},
		}
		ctr := &p.Spec.Containers[0]
		ctr.Env = []v1.EnvVar{
			{Name: "ME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			{Name: "PASSWORD",
				ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{
					Name: "creds"}, Key: "password"}}},
			{Name: "GREETING", Value: "hello $(ME)"},
		}
		ctr.VolumeMounts = []v1.VolumeMount{
			{Name: "mem", MountPath: "/scratch", SubPathExpr: "for/$(ME)"},
			{Name: "cm", MountPath: "/etc/settings"}, {Name: "sec", MountPath: "/etc/creds"}, {Name: "token", MountPath: "/token"},
			{Name: "info", MountPath: "/info"}, {Name: "host", MountPath: "/host", ReadOnly: true},
		}
	})
	p := c.await("store", "running", running)
	for _, want := range []struct{ cmd, out string }{
		{"cat /etc/settings/color", "red"},
		{"cat /etc/creds/password", "hunter2"},
		{"cat /token/token", "the-token"},
		{"cat /info/labels", `tier="one"`},
		{"id", "uid=1000 gid=0 groups=[0 3000]"},
	} {
		if got := c.run(p, append([]string{"/bin/sh", "-c"}, want.cmd)...); got != want.out {
			t.Errorf("%s: %q, want %q", want.cmd, got, want.out)
		}
	}
	env := c.run(p, "/bin/sh", "-c", "env")
	if !strings.Contains(env, "GREETING=hello store") || !strings.Contains(env, "PASSWORD=hunter2") {
		t.Errorf("environment:\n%s", env)
	}
	c.run(p, "/bin/sh", "-c", "echo mine > /scratch/file")
	if b, err := os.ReadFile(filepath.Join(c.root, "pods", string(p.UID),
		"volumes/kubernetes.io~empty-dir/mem/for/store/file")); err != nil || strings.TrimSpace(string(b)) != "mine" {
		t.Errorf("the subPath is elsewhere: %q, %v", b, err)
	}

	// A change of a ConfigMap is seen inside.
	cm.Data["color"], cm.ResourceVersion = "blue", "10"
	if _, err := c.api.CoreV1().ConfigMaps("default").Update(c.ctx, cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for c.run(p, "/bin/sh", "-c", "cat /etc/settings/color") != "blue" {
		if time.Since(began) > patience {
			t.Fatal("the change never reached the container")
		}
	}
	t.Logf("the change was seen inside after at most %s", time.Since(began).Round(time.Millisecond))

	c.delete(p, 1)
	c.await("store", "gone", gone)
	if left, _ := os.ReadDir(filepath.Join(c.root, "pods")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}
