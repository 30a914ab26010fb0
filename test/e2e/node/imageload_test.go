package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/internal/cluster/containerd/livetest"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestImageCommand loads archives of every form into a node's runtime, on the
// node and through its agent, runs pods of them, and removes them again.
func TestImageCommand(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	for _, step := range []struct {
		name string
		f    func(*testing.T, *kit.Cluster)
	}{
		{"docker save", testLoadDocker},
		{"OCI by standard input and directory", testLoadOCI},
		{"bad archives leave nothing", testLoadRefusals},
		{"through the agent, with rights of its own", testLoadRemote},
		{"rm", testImageRemove},
		{"prune", testImagePrune},
	} {
		t.Run(step.name, func(t *testing.T) {
			c.T = t
			defer func() { c.T = t }()
			step.f(t, c)
		})
	}
	c.T = t
}

// image runs `berth image` with standard input.
func image(c *kit.Cluster, stdin []byte, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "berth"), append([]string{"image"}, args...)...)
	cmd.Env = append(os.Environ(), "BERTH_DATA_DIR="+c.Dir)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustImage(c *kit.Cluster, stdin []byte, args ...string) string {
	c.T.Helper()
	out, err := image(c, stdin, args...)
	if err != nil {
		c.T.Fatalf("berth image %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

type imageRow struct {
	Name, Digest, Platform string
	Containers             int
	Pinned                 bool
}

func imageRows(c *kit.Cluster) map[string]imageRow {
	c.T.Helper()
	var list []imageRow
	if err := json.Unmarshal([]byte(mustImage(c, nil, "ls", "-o", "json")), &list); err != nil {
		c.T.Fatal(err)
	}
	rows := map[string]imageRow{}
	for _, r := range list {
		rows[r.Name] = r
	}
	return rows
}

// layoutOf returns the files of the toolbox image's archive, an OCI layout.
func layoutOf(t *testing.T, c *kit.Cluster) map[string][]byte {
	t.Helper()
	f, err := os.Open(filepath.Join(c.Bin, "images", "toolbox.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files[filepath.Clean(h.Name)], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// dockerSave is the toolbox image as docker writes it, for an architecture;
// empty is the image's own.
func dockerSave(t *testing.T, c *kit.Cluster, arch string, tags ...string) []byte {
	t.Helper()
	files := layoutOf(t, c)
	type manifest struct {
		Manifests []struct{ Digest string }
		Config    struct{ Digest string }
		Layers    []struct{ Digest string }
	}
	blob := func(digest string) []byte { return files["blobs/"+strings.Replace(digest, ":", "/", 1)] }
	parse := func(data []byte) (m manifest) {
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := parse(blob(parse(files["index.json"]).Manifests[0].Digest))
	config := map[string]any{}
	if err := json.Unmarshal(blob(m.Config.Digest), &config); err != nil {
		t.Fatal(err)
	}
	config["comment"] = strings.Join(tags, " ") // an image of its own
	if arch != "" {
		config["architecture"] = arch
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name string, data []byte) string {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(data)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		return name
	}
	entry := map[string]any{"Config": add("c0.json", text), "RepoTags": tags}
	var layers []string
	for i, l := range m.Layers {
		layers = append(layers, add(strings.Repeat("l", i+1)+"/layer.tar", blob(l.Digest)))
	}
	entry["Layers"] = layers
	list, err := json.Marshal([]any{entry})
	if err != nil {
		t.Fatal(err)
	}
	add("manifest.json", list)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func writeArchive(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archive.tar")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func testLoadDocker(t *testing.T, c *kit.Cluster) {
	file := writeArchive(t, dockerSave(t, c, "", "demo/app:1", "demo/app:2"))
	out := mustImage(c, nil, "load", file)
	for _, want := range []string{"docker.io/demo/app:1", "docker.io/demo/app:2", "sha256:", "linux/", "loaded"} {
		if !strings.Contains(out, want) {
			t.Errorf("nothing of %q in:\n%s", want, out)
		}
	}
	if out := mustImage(c, nil, "load", file); !strings.Contains(out, "was there") {
		t.Errorf("a second load:\n%s", out)
	}
	imagePod(c, "app", "demo/app:1", "Never", "")
	c.WaitReady("default", "app=app", 1)
	rows := imageRows(c)
	one, two := rows["docker.io/demo/app:1"], rows["docker.io/demo/app:2"]
	if one.Containers != 1 || two.Containers != 1 || one.Pinned || one.Digest != two.Digest {
		t.Errorf("the image of a running pod: %+v %+v", one, two)
	}
	if pause := rows["berth.dev/pause:1"]; !pause.Pinned || pause.Containers == 0 {
		t.Errorf("the pause image: %+v", pause)
	}
}

func testLoadOCI(t *testing.T, c *kit.Cluster) {
	text, err := os.ReadFile(filepath.Join(c.Bin, "images", "toolbox.tar"))
	if err != nil {
		t.Fatal(err)
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	mustImage(c, z.Bytes(), "load", "--name", "demo/stdin", "-")
	dir := t.TempDir()
	for name, data := range layoutOf(t, c) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mustImage(c, nil, "load", "--name", "demo/dir:1", dir)
	imagePod(c, "stdin", "demo/stdin", "Never", "")
	imagePod(c, "dir", "demo/dir:1", "Never", "")
	c.WaitReady("default", "app=stdin", 1)
	c.WaitReady("default", "app=dir", 1)
	c.Kubectl("delete", "pod", "stdin", "dir", "--wait")
}

// stored lists blobs and unfinished blobs of the bundled runtime.
func stored(c *kit.Cluster) (out []string) {
	c.T.Helper()
	root := filepath.Join(c.Dir, "containerd", "io.containerd.content.v1.content")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		c.T.Fatal(err)
	}
	return out
}

func testLoadRefusals(t *testing.T, c *kit.Cluster) {
	// Names that the image had before are not there, so what is loaded would be new.
	good := dockerSave(t, c, "", "demo/bad:1")
	other := "arm64"
	if strings.HasSuffix(imageRows(c)["docker.io/demo/app:1"].Platform, "arm64") {
		other = "amd64"
	}
	before, rows := stored(c), imageRows(c)
	for name, bad := range map[string]struct {
		data []byte
		want []string
	}{
		"truncated":        {good[:len(good)/2], []string{"truncated"}},
		"no archive":       {[]byte(strings.Repeat("text ", 500)), []string{"not an archive", "accepted are archives of `docker save`"}},
		"no manifest":      {good[:512+1024], []string{"archive.tar: "}},
		"another platform": {dockerSave(t, c, other, "demo/bad:1"), []string{"linux/" + other, "this node is linux/"}},
	} {
		file := writeArchive(t, bad.data)
		for _, to := range [][]string{nil, {"--all-nodes"}} {
			out, err := image(c, nil, append([]string{"load", file}, to...)...)
			if err == nil {
				t.Errorf("%s: accepted\n%s", name, out)
			}
			for _, want := range append(bad.want, file) {
				if !strings.Contains(out, want) {
					t.Errorf("%s: nothing of %q in:\n%s", name, want, out)
				}
			}
		}
	}
	if after := stored(c); !slices.Equal(after, before) {
		t.Errorf("blobs before %d, after %d: something half-imported stayed", len(before), len(after))
	}
	if after := imageRows(c); len(after) != len(rows) {
		t.Errorf("images before %v, after %v", rows, after)
	}
	if out, err := image(c, nil, "load", "/no/such.tar"); err == nil || !strings.Contains(out, "/no/such.tar") {
		t.Errorf("a file that is not there: %v %s", err, out)
	}
}

// testLoadRemote: rights on nodes/proxy do not open it, and the right to list
// does not load.
func testLoadRemote(t *testing.T, c *kit.Cluster) {
	file := writeArchive(t, dockerSave(t, c, "", "demo/remote:1"))
	for user, rule := range map[string]string{
		"proxy": "nodes/proxy", "reader": "nodes/images", "loader": "nodes/images",
	} {
		c.Kubectl("create", "serviceaccount", user)
		verb := map[string]string{"proxy": "*", "reader": "get", "loader": "create"}[user]
		c.Kubectl("create", "clusterrole", user, "--verb="+verb, "--resource="+rule)
		c.Kubectl("create", "clusterrolebinding", user, "--clusterrole="+user, "--serviceaccount=default:"+user)
		c.Kubectl("create", "clusterrolebinding", user+"-nodes", "--clusterrole=berth-test-nodes", "--serviceaccount=default:"+user)
	}
	c.Kubectl("create", "clusterrole", "berth-test-nodes", "--verb=list", "--resource=nodes")
	for user, may := range map[string][2]bool{"proxy": {false, false}, "reader": {true, false}, "loader": {false, true}} {
		config := accountConfig(c, t, user)
		for i, args := range [][]string{{"ls", "--all-nodes"}, {"load", "--all-nodes", file}} {
			out, err := image(c, nil, append(args, "--kubeconfig", config)...)
			if may[i] != (err == nil) {
				t.Errorf("%s of %s: %v\n%s", args[0], user, err, out)
			}
			if !may[i] && !strings.Contains(out, "nodes/images") {
				t.Errorf("the refusal does not name the right:\n%s", out)
			}
		}
	}
	node := c.Pods("default", "app=app")[0].Spec.NodeName
	if out := mustImage(c, nil, "ls", "--node", node); !strings.Contains(out, "docker.io/demo/remote:1") ||
		!strings.HasPrefix(out, "NODE") {
		t.Errorf("ls of node %s:\n%s", node, out)
	}
	if out, err := image(c, nil, "ls", "--node", "nowhere"); err == nil || !strings.Contains(out, "there is no such node") {
		t.Errorf("%v %s", err, out)
	}
	imagePod(c, "remote", "demo/remote:1", "Never", "")
	c.WaitReady("default", "app=remote", 1)
}

// accountConfig writes a kubeconfig with a service account's token.
func accountConfig(c *kit.Cluster, t *testing.T, account string) string {
	t.Helper()
	cfg, err := clientcmd.LoadFromFile(filepath.Join(c.Dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(c.Kubectl("create", "token", account))
	for name := range cfg.AuthInfos {
		cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func testImageRemove(t *testing.T, c *kit.Cluster) {
	for name, want := range map[string]string{
		"demo/app:1": "pod default/app (container c)", "berth.dev/pause:1": "pinned", "demo/none:1": "is not on this node",
	} {
		if out, err := image(c, nil, "rm", name); err == nil || !strings.Contains(out, want) || !strings.Contains(out, name) {
			t.Errorf("rm %s: %v\n%s", name, err, out)
		}
	}
	if out := mustImage(c, nil, "rm", "--force", "demo/app:2"); strings.TrimSpace(out) != "removed docker.io/demo/app:2" {
		t.Errorf("rm of one of two tags:\n%s", out)
	}
	node := c.Pods("default", "app=app")[0].Spec.NodeName
	if out := mustImage(c, nil, "rm", "--node", node, "demo/stdin"); !strings.Contains(out, node+": removed docker.io/demo/stdin:latest") {
		t.Errorf("rm through the agent:\n%s", out)
	}
	rows := imageRows(c)
	for name, want := range map[string]bool{"docker.io/demo/app:1": true, "docker.io/demo/app:2": false,
		"docker.io/demo/stdin:latest": false} {
		if _, ok := rows[name]; ok != want {
			t.Errorf("%s is there: %v", name, ok)
		}
	}
}

func testImagePrune(t *testing.T, c *kit.Cluster) {
	c.Kubectl("delete", "pod", "remote", "--wait")
	// A container goes with its pod, or in the next minute.
	c.Eventually("only the pod app's image is used", func() (bool, string) {
		r := imageRows(c)["docker.io/demo/remote:1"]
		return r.Containers == 0, r.Name
	})
	out := mustImage(c, nil, "prune")
	if !strings.Contains(out, "removed docker.io/demo/remote:1") || !strings.Contains(out, "freed ") || strings.Contains(out, "freed 0") {
		t.Errorf("prune:\n%s", out)
	}
	rows := imageRows(c)
	if _, ok := rows["berth.dev/pause:1"]; !ok || rows["docker.io/demo/app:1"].Containers != 1 {
		t.Errorf("after prune: %+v", rows)
	}
	c.WaitReady("default", "app=app", 1)
	if out := mustImage(c, nil, "prune"); strings.TrimSpace(out) != "freed 0" {
		t.Errorf("a second prune:\n%s", out)
	}
}

// TestImageCommandOnOwnRuntime: the commands work with a containerd of the
// user's own, on the node and through its agent.
func TestImageCommandOnOwnRuntime(t *testing.T) {
	c := kit.NewCluster(t)
	dir, err := os.MkdirTemp("", "bc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	runc, err := kit.ContainerdRuntime(t)
	if err != nil {
		t.Skipf("no OCI runtime works on this host: %v", err)
	}
	own := livetest.Supervisor(c.Bin, dir, "berth-own", runc)
	if _, _, err := own.Ensure(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	// The pod network's configuration goes where this runtime looks for it.
	if err := os.MkdirAll(filepath.Join(c.Dir, "agent"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "agent", "cni"), filepath.Join(c.Dir, "agent", "cni")); err != nil {
		t.Fatal(err)
	}
	c.Flags = []string{"--container-runtime-endpoint", "unix://" + own.Socket()}
	c.Up()
	mustImage(c, nil, "load", writeArchive(t, dockerSave(t, c, "", "demo/own:1")))
	mustImage(c, dockerSave(t, c, "", "demo/own:2"), "load", "--all-nodes", "-")
	imagePod(c, "own", "demo/own:1", "Never", "")
	imagePod(c, "own2", "demo/own:2", "Never", "")
	c.WaitReady("default", "app=own", 1)
	c.WaitReady("default", "app=own2", 1)
	if out, err := image(c, nil, "rm", "demo/own:1"); err == nil || !strings.Contains(out, "pod default/own (container c)") {
		t.Errorf("rm: %v\n%s", err, out)
	}
	c.Disconnect()
	c.Berth("down", "--data-dir", c.Dir, "--purge") // while the runtime is there
}
