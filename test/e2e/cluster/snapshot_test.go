package e2e

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
)

// clearSecret must lie in no snapshot in clear text.
const clearSecret = "the-fox-is-in-the-henhouse-0451"

// TestSnapshot saves a running cluster, changes it, and restores it under its
// running containers: objects are as before, the file holds no clear Secret,
// revisions only grow, watches from the past begin again, the old kubeconfig
// works, and pods that ran then and run now have the same containers.
func TestSnapshot(t *testing.T) {
	c := newCluster(t)
	ctx := context.Background()
	keys := t.TempDir()
	key, public := filepath.Join(keys, "key"), filepath.Join(keys, "public")
	if err := os.WriteFile(public, []byte(c.berth("snapshot", "keygen", key)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.extra = append(c.extra, "--snapshot-every=1h", "--snapshot-key-file="+public)
	c.up()
	if out := c.berth("status", "--data-dir", c.dir); !strings.Contains(out, "ok   snapshots") {
		t.Errorf("the schedule is not in the status:\n%s", out)
	}
	c.kubectl("create", "secret", "generic", "kept", "--from-literal=word="+clearSecret)
	c.kubectl("create", "configmap", "kept", "--from-literal=word=before")
	c.kubectl("run", "stays", "--image=berth.dev/pause:1", "--labels=set=then")
	c.kubectl("run", "returns", "--image=berth.dev/pause:1", "--labels=set=then", "--grace-period=0")
	before := map[string]v1.Pod{}
	for _, p := range c.waitReady("default", "set=then", 2) {
		before[p.Name] = p
	}
	kubeconfig, err := os.ReadFile(filepath.Join(c.dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}

	out := c.berth("snapshot", "save", "--data-dir", c.dir, "--name", "one", "--key-file", public)
	t.Log(out)
	file := filepath.Join(c.dir, "snapshots", "one.berthsnap")
	out = c.berth("snapshot", "ls", "--data-dir", c.dir)
	t.Log("\n" + out)
	if !strings.Contains(out, "one ") || !strings.Contains(out, " key ") || !strings.Contains(out, " yes") {
		t.Errorf("ls:\n%s", out)
	}
	noClearSecret(t, c, file, key)

	// What is changed after the snapshot.
	c.kubectl("delete", "secret", "kept")
	c.kubectl("create", "configmap", "later", "--from-literal=word=after")
	c.kubectl("patch", "configmap", "kept", "-p", `{"data":{"word":"after"}}`)
	c.kubectl("delete", "pod", "returns", "--grace-period=0", "--force")
	c.kubectl("run", "later", "--image=berth.dev/pause:1", "--labels=set=later")
	c.waitReady("default", "set=later", 1)
	seen, err := c.client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	running := c.containerPIDs()

	refused := func(want string, args ...string) {
		t.Helper()
		out, err := c.tryBerth(append([]string{"snapshot", "restore", file, "--data-dir", c.dir}, args...)...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("restore %v: %v, want %q in\n%s", args, err, want, out)
		}
	}
	refused("a cluster is running", "--key-file", key, "--force", "--yes")
	c.disconnect()
	pid := c.pid()
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	refused("does not open it", "--key-file", public, "--force", "--yes")
	refused("holds a cluster already", "--key-file", key, "--yes")
	refused("nothing was done", "--key-file", key, "--force")
	t.Log("\n" + c.berth("snapshot", "restore", file, "--data-dir", c.dir, "--key-file", key, "--force", "--yes"))
	c.up()

	restored, err := c.client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkObjects(t, c, restored)
	was, _ := strconv.ParseInt(seen.ResourceVersion, 10, 64)
	if now, _ := strconv.ParseInt(restored.ResourceVersion, 10, 64); now <= was || was == 0 {
		t.Errorf("the list has resourceVersion %d and had %d", now, was)
	}
	checkOldWatch(t, c, seen.ResourceVersion)

	pods := c.waitReady("default", "set=then", 2)
	c.eventually("the pod of later is stopped", func() (bool, string) {
		return len(c.pods("default", "set=later")) == 0 && len(c.containerPIDs()) <= len(running)+2, "it is there"
	})
	now := c.containerPIDs()
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
		if p.Status.ContainerStatuses[0].ContainerID != id || restarts(&p) != 0 || now[bare] == 0 || now[bare] != running[bare] {
			t.Errorf("pod stays: %s, process %d; was %s, process %d", describe(&p), now[bare], id, running[bare])
		}
	}
	later := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(later, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := c.tryKubectl("", "--kubeconfig", later, "get", "nodes"); err != nil {
		t.Errorf("the kubeconfig from before: %v\n%s", err, out)
	}
}

// noClearSecret looks for the Secret in the file, and in the store that lies in it.
func noClearSecret(t *testing.T, c *cluster, file, key string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte(clearSecret)) || bytes.Contains(data, []byte("PRIVATE KEY")) {
		t.Error("the sealed file holds a Secret or a key in clear text")
	}
	db, err := os.ReadFile(filepath.Join(c.dir, "etcd", "member-data", "member", "snap", "db"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(db, []byte(clearSecret)) || !bytes.Contains(db, []byte("/registry/secrets/default/kept")) {
		t.Error("the store, which the snapshot holds as it is, has the Secret in clear text or not at all")
	}
	if out := c.berth("snapshot", "verify", file, "--key-file", key); !strings.Contains(out, "is whole") {
		t.Errorf("verify: %s", out)
	}
	open := filepath.Join(t.TempDir(), "open")
	c.berth("snapshot", "save", "--data-dir", c.dir, "--dir", open, "--name", "open", "--unsealed-with-all-keys")
	packed := exec.Command("sh", "-c", `tail -c +4097 "$1" | zstd -d | tar -xO store.db`, "sh", filepath.Join(open, "open.berthsnap"))
	if store, err := packed.Output(); err != nil {
		t.Logf("opening it by hand needs tar and zstd: %v", err)
	} else if bytes.Contains(store, []byte(clearSecret)) || !bytes.Contains(store, []byte("/registry/secrets/default/kept")) {
		t.Error("the store of an open file has the Secret in clear text or not at all")
	}
}

func checkObjects(t *testing.T, c *cluster, maps *v1.ConfigMapList) {
	t.Helper()
	words := map[string]string{}
	for _, m := range maps.Items {
		words[m.Name] = m.Data["word"]
	}
	if _, ok := words["later"]; ok || words["kept"] != "before" {
		t.Errorf("config maps: %v", words)
	}
	secret, err := c.client.CoreV1().Secrets("default").Get(context.Background(), "kept", metav1.GetOptions{})
	if err != nil || string(secret.Data["word"]) != clearSecret {
		t.Errorf("the Secret: %v, %v", secret, err)
	}
}

// checkOldWatch: a watch from before the restore is told that its version is gone.
func checkOldWatch(t *testing.T, c *cluster, version string) {
	t.Helper()
	w, err := c.client.CoreV1().ConfigMaps("default").Watch(context.Background(), metav1.ListOptions{ResourceVersion: version})
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
