package storage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// contentsBar is how soon a change of a Secret or ConfigMap must be in the
// pods that show it.
const contentsBar = 2 * time.Second

// TestVolumes looks at volumes that the agent itself fills, from inside a
// container and while their sources change.
func TestVolumes(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	host := t.TempDir()
	manifest, err := os.ReadFile(filepath.Join("testdata", "volumes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(strings.ReplaceAll(string(manifest), "HOSTDIR", host))
	pod := c.WaitReady("default", "app=volumes", 1)[0]
	read := func(path string) string {
		t.Helper()
		return c.Kubectl("exec", "volumes", "--", "cat", path)
	}
	for path, want := range map[string]string{
		"/all/labels": `app="volumes"`, "/all/note": "why", "/all/cpu": "500", "/all/in/key": "s1", "/sub": "s1", "/config/key": "one",
		"/frozen/key": "ice",
	} {
		if got := read(path); got != want {
			t.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
	for path, want := range map[string]string{"/all/..data/token": "-rw-r--r--", "/secret/..data/key": "-r--------"} {
		if got := c.Kubectl("exec", "volumes", "--", "ls", "-l", path); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want mode %s", path, got, want)
		}
	}
	if out, err := c.TryKubectl("", "exec", "volumes", "--", "touch", "/host/x"); err == nil {
		t.Errorf("a read-only volume is writable: %s", out)
	}
	if got := pod.Status.ContainerStatuses[0].VolumeMounts; len(got) == 0 {
		t.Error("the status tells of no mounts")
	}
	t.Run("changes reach the running pod", func(t *testing.T) {
		dir := filepath.Join(c.Dir, "agent", "pods", string(pod.UID), "volumes")
		for _, change := range []struct{ kind, name, patch, file, want string }{
			{"configmap", "contents", `{"data":{"key":"two"}}`, "kubernetes.io~configmap/config/key", "two"},
			{"secret", "contents", `{"stringData":{"key":"s2"}}`, "kubernetes.io~secret/secret/key", "s2"},
			{"secret", "contents", `{"stringData":{"key":"s3"}}`, "kubernetes.io~projected/all/in/key", "s3"},
			{"pod", "volumes", `{"metadata":{"annotations":{"note":"because"}}}`, "kubernetes.io~projected/all/note", "because"},
		} {
			c.Kubectl("patch", change.kind, change.name, "-p", change.patch)
			since := time.Now()
			c.Eventually(change.file+" changes", func() (bool, string) {
				got, err := os.ReadFile(filepath.Join(dir, change.file))
				return err == nil && string(got) == change.want, fmt.Sprintf("%q %v", got, err)
			})
			took := time.Since(since)
			t.Logf("%s: %v after the change was acknowledged", change.file, took)
			if took > contentsBar {
				t.Errorf("%s took %v, want %v", change.file, took, contentsBar)
			}
		}
		if got := read("/secret/key"); got != "s3" {
			t.Errorf("the container sees %q", got)
		}
		if got := read("/sub"); got != "s1" {
			t.Errorf("a subPath changed to %q under the container", got)
		}
	})
	c.Kubectl("delete", "pod", "volumes", "--wait")
	if _, err := c.Client.CoreV1().Pods("default").Get(context.Background(), "volumes", metav1.GetOptions{}); err == nil {
		t.Error("the pod is still there")
	}
}
