package cluster

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// clearSecret must lie in no snapshot in clear text.
const clearSecret = "the-fox-is-in-the-henhouse-0451"

// TestSnapshot saves a running cluster, changes it, and restores it under its
// running containers: objects are as before, the file holds no clear Secret,
// revisions only grow, watches from the past begin again, the old kubeconfig
// works, and pods that ran then and run now have the same containers.
func TestSnapshot(t *testing.T) {
	c := kit.NewCluster(t)
	ctx := context.Background()
	keys := t.TempDir()
	key, public := filepath.Join(keys, "key"), filepath.Join(keys, "public")
	if err := os.WriteFile(public, []byte(c.Berth("snapshot", "keygen", key)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Flags = append(c.Flags, "--snapshot-every=1h", "--snapshot-key-file="+public)
	c.Up()
	if out := c.Berth("status", "--data-dir", c.Dir); !strings.Contains(out, "ok   snapshots") {
		t.Errorf("the schedule is not in the status:\n%s", out)
	}
	c.Kubectl("create", "secret", "generic", "kept", "--from-literal=word="+clearSecret)
	c.Kubectl("create", "configmap", "kept", "--from-literal=word=before")
	c.Kubectl("run", "stays", "--image=berth.dev/pause:1", "--labels=set=then")
	c.Kubectl("run", "returns", "--image=berth.dev/pause:1", "--labels=set=then", "--grace-period=0")
	before := map[string]v1.Pod{}
	for _, p := range c.WaitReady("default", "set=then", 2) {
		before[p.Name] = p
	}
	kubeconfig, err := os.ReadFile(filepath.Join(c.Dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}

	out := c.Berth("snapshot", "save", "--data-dir", c.Dir, "--name", "one", "--key-file", public)
	t.Log(out)
	file := filepath.Join(c.Dir, "snapshots", "one.berthsnap")
	out = c.Berth("snapshot", "ls", "--data-dir", c.Dir)
	t.Log("\n" + out)
	if !strings.Contains(out, "one ") || !strings.Contains(out, " key ") || !strings.Contains(out, " yes") {
		t.Errorf("ls:\n%s", out)
	}
	noClearSecret(t, c, file, key)

	// What is changed after the snapshot.
	c.Kubectl("delete", "secret", "kept")
	c.Kubectl("create", "configmap", "later", "--from-literal=word=after")
	c.Kubectl("patch", "configmap", "kept", "-p", `{"data":{"word":"after"}}`)
	c.Kubectl("delete", "pod", "returns", "--grace-period=0", "--force")
	c.Kubectl("run", "later", "--image=berth.dev/pause:1", "--labels=set=later")
	c.WaitReady("default", "set=later", 1)
	seen, err := c.Client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	running := c.ContainerPIDs()

	refused := func(want string, args ...string) {
		t.Helper()
		out, err := c.TryBerth(append([]string{"snapshot", "restore", file, "--data-dir", c.Dir}, args...)...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("restore %v: %v, want %q in\n%s", args, err, want, out)
		}
	}
	refused("a cluster is running", "--key-file", key, "--force", "--yes")
	c.Disconnect()
	pid := c.PID()
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	kit.WaitProcessGone(t, pid)
	refused("does not open it", "--key-file", public, "--force", "--yes")
	refused("holds a cluster already", "--key-file", key, "--yes")
	refused("nothing was done", "--key-file", key, "--force")
	t.Log("\n" + c.Berth("snapshot", "restore", file, "--data-dir", c.Dir, "--key-file", key, "--force", "--yes"))
	c.Up()

	restored, err := c.Client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkObjects(t, c, restored)
	was, _ := strconv.ParseInt(seen.ResourceVersion, 10, 64)
	if now, _ := strconv.ParseInt(restored.ResourceVersion, 10, 64); now <= was || was == 0 {
		t.Errorf("the list has resourceVersion %d and had %d", now, was)
	}
	checkOldWatch(t, c, seen.ResourceVersion)

	pods := c.WaitReady("default", "set=then", 2)
	c.Eventually("the pod of later is stopped", func() (bool, string) {
		return len(c.Pods("default", "set=later")) == 0 && len(c.ContainerPIDs()) <= len(running)+2, "it is there"
	})
	now := c.ContainerPIDs()
	for _, p := range pods {
		old := before[p.Name]
		id := old.Status.ContainerStatuses[0].ContainerID
		if p.UID != old.UID {
			t.Errorf("pod %s has UID %s, had %s", p.Name, p.UID, old.UID)
		}
		if p.Name != "stays" {
			continue
		}
		bare := id[strings.LastIndex(id, "/")+1:]
		if p.Status.ContainerStatuses[0].ContainerID != id || kit.Restarts(&p) != 0 || now[bare] == 0 || now[bare] != running[bare] {
			t.Errorf("pod stays: %s, process %d; was %s, process %d", kit.Describe(&p), now[bare], id, running[bare])
		}
	}
	later := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(later, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := c.TryKubectl("", "--kubeconfig", later, "get", "nodes"); err != nil {
		t.Errorf("the kubeconfig from before: %v\n%s", err, out)
	}
}

// noClearSecret looks for the Secret in the file, and in the store that lies in it.
func noClearSecret(t *testing.T, c *kit.Cluster, file, key string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte(clearSecret)) || bytes.Contains(data, []byte("PRIVATE KEY")) {
		t.Error("the sealed file holds a Secret or a key in clear text")
	}
	db, err := os.ReadFile(filepath.Join(c.Dir, "etcd", "member-data", "member", "snap", "db"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(db, []byte(clearSecret)) || !bytes.Contains(db, []byte("/registry/secrets/default/kept")) {
		t.Error("the store, which the snapshot holds as it is, has the Secret in clear text or not at all")
	}
	if out := c.Berth("snapshot", "verify", file, "--key-file", key); !strings.Contains(out, "is whole") {
		t.Errorf("verify: %s", out)
	}
	open := filepath.Join(t.TempDir(), "open")
	c.Berth("snapshot", "save", "--data-dir", c.Dir, "--dir", open, "--name", "open", "--unsealed-with-all-keys")
	packed := exec.Command("sh", "-c", `tail -c +4097 "$1" | zstd -d | tar -xO store.db`, "sh", filepath.Join(open, "open.berthsnap"))
	if store, err := packed.Output(); err != nil {
		t.Logf("opening it by hand needs tar and zstd: %v", err)
	} else if bytes.Contains(store, []byte(clearSecret)) || !bytes.Contains(store, []byte("/registry/secrets/default/kept")) {
		t.Error("the store of an open file has the Secret in clear text or not at all")
	}
}

func checkObjects(t *testing.T, c *kit.Cluster, maps *v1.ConfigMapList) {
	t.Helper()
	words := map[string]string{}
	for _, m := range maps.Items {
		words[m.Name] = m.Data["word"]
	}
	if _, ok := words["later"]; ok || words["kept"] != "before" {
		t.Errorf("config maps: %v", words)
	}
	secret, err := c.Client.CoreV1().Secrets("default").Get(context.Background(), "kept", metav1.GetOptions{})
	if err != nil || string(secret.Data["word"]) != clearSecret {
		t.Errorf("the Secret: %v, %v", secret, err)
	}
}

// checkOldWatch: a watch from before the restore is told that its version is gone.
func checkOldWatch(t *testing.T, c *kit.Cluster, version string) {
	t.Helper()
	w, err := c.Client.CoreV1().ConfigMaps("default").Watch(context.Background(), metav1.ListOptions{ResourceVersion: version})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	e := <-w.ResultChan()
	if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from before: %s, %v", e.Type, err)
	}
}
