package containerd

import (
	"archive/tar"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

// TestConfig is what containerd is configured with, whole.
func TestConfig(t *testing.T) {
	plain := Options{Layout: Layout{DataDir: "/var/lib/berth", Instance: "berth"}, CNIBinDir: "/opt/berth", OCIRuntime: "/usr/bin/crun",
		PauseImage: "berth.dev/pause:1", Snapshotter: "overlayfs", Hugetlb: true}
	// A data directory with a long path, on overlayfs, in a container, with systemd.
	odd := Options{Layout: Layout{DataDir: "/" + strings.Repeat("long/", 8) + `a"b`, Instance: "berth-01234567"}, CNIBinDir: "/opt/berth",
		OCIRuntime: "/usr/sbin/runc", PauseImage: "berth.dev/pause:1", Snapshotter: "native", SystemdCgroup: true, RestrictOOM: true}
	var both strings.Builder
	for _, o := range []Options{plain, odd} {
		text, err := o.Render()
		if err != nil {
			t.Fatal(err)
		}
		both.Write(text)
	}
	golden.Check(t, filepath.Join("testdata", "config.toml.txt"), both.String())
}

// TestSocketDir: the shims' sockets fit containerd's limit, whatever the length
// of the data directory's path.
func TestSocketDir(t *testing.T) {
	for n := range 80 {
		l := Layout{DataDir: "/" + strings.Repeat("d", n), Instance: "berth-01234567"}
		dir := l.SocketDir()
		if len(dir) > maxSocketDir {
			t.Errorf("%s has %d bytes", dir, len(dir))
		}
		if below := strings.HasPrefix(dir, l.DataDir+"/"); n > 0 && below != (len(l.DataDir)+len("/run/s") <= maxSocketDir) {
			t.Errorf("a data directory of %d bytes has its sockets in %s", len(l.DataDir), dir)
		}
	}
}

// pack writes a tar file.
func pack(t *testing.T, files map[string]string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestArchive: blobs are read in place by their digest, and what is no image
// archive is refused by what it lacks.
func TestArchive(t *testing.T) {
	index := `{"manifests":[{"digest":"sha256:aa","annotations":{"io.containerd.image.name":"i"}}]}`
	for _, prefix := range []string{"", "./"} { // as different tools write it
		a, err := openArchive(pack(t, map[string]string{prefix + "index.json": index, prefix + "blobs/sha256/aa": "first",
			prefix + "blobs/sha256/bb": "second"}))
		if err != nil {
			t.Fatal(err)
		}
		defer a.f.Close()
		if len(a.manifests) != 1 || a.manifests[0].Annotations["io.containerd.image.name"] != "i" {
			t.Errorf("manifests: %+v", a.manifests)
		}
		for digest, want := range map[string]string{"sha256:aa": "first", "sha256:bb": "second"} {
			if got, err := a.blob(digest); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v", digest, got, err)
			}
		}
		for digest, want := range map[string]string{"aa": "want ALGORITHM:HEX", "sha256:cc": "blobs/sha256/cc is not in the archive"} {
			if _, err := a.blob(digest); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", digest, err, want)
			}
		}
		// The descriptor and the blob must agree before anything is sent.
		err = a.write(t.Context(), nil, descriptor{Digest: "sha256:aa", Size: 4}, nil)
		if err == nil || !strings.Contains(err.Error(), "5 bytes, its descriptor says 4") {
			t.Errorf("a damaged blob: %v", err)
		}
		// An image without a name cannot be imported: no one could ask for it.
		nameless := pack(t, map[string]string{"index.json": `{"manifests":[{"digest":"sha256:aa"}]}`})
		if _, err := importArchive(t.Context(), nil, nameless, nil, ""); err == nil || !strings.Contains(err.Error(),
			"io.containerd.image.name") {
			t.Errorf("an image without a name: %v", err)
		}
		// What the runtime has costs no call.
		known := pack(t, map[string]string{"index.json": index})
		got, err := importArchive(t.Context(), nil, known, map[string]string{"i": "sha256:aa"}, "")
		if err != nil || len(got) != 1 || !got[0].Present {
			t.Errorf("an image that is there: %+v, %v", got, err)
		}
	}
	for name, c := range map[string]struct{ files, want string }{
		"docker save": {"manifest.json", "no OCI image archive"}, "half an index": {"index.json", "reading index.json"},
	} {
		if _, err := openArchive(pack(t, map[string]string{c.files: "{"})); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	text := filepath.Join(t.TempDir(), "text.tar")
	if err := os.WriteFile(text, []byte(strings.Repeat("no tar ", 200)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{text, text + ".none"} {
		if _, err := openArchive(file); err == nil {
			t.Errorf("%s is taken for an archive", file)
		}
	}
}

// fakeRuntimes puts programs named like OCI runtimes first on the PATH. The
// scripts see $seccomp, which says whether a profile is asked for.
func fakeRuntimes(t *testing.T, scripts map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, script := range scripts {
		text := "#!/bin/sh\necho " + name + " >>" + dir + "/calls\n" +
			"grep -q defaultAction \"$5/config.json\" && seccomp=yes\n" + script + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

// TestChoiceOfOCIRuntime: the first that runs a container, with a profile if it
// can; the answer holds until the host boots or a program changes.
func TestChoiceOfOCIRuntime(t *testing.T) {
	const works, noProfile, broken = "exit 0", `[ -z "$seccomp" ] || { echo no seccomp >&2; exit 1; }`,
		"echo one; echo bad cgroups >&2; exit 1"
	for _, c := range []struct {
		name, crun, runc        string
		chosen, seccomp, others string
		calls                   int
	}{
		{"the better one works", works, works, "crun", "", "", 1},
		{"without profiles", noProfile, works, "crun", "crun applies no profile on this host", "", 2},
		{"the second one works", broken, works, "runc", "", "bad cgroups", 3},
		{"none works", broken, broken, "", "", "bad cgroups", 4},
	} {
		dir := fakeRuntimes(t, map[string]string{"crun": c.crun, "runc": c.runc})
		memo := filepath.Join(dir, "memo")
		choose := func(boot string) (trialResult, []trialResult, int, error) {
			got, all, err := ChooseOCIRuntime(t.Context(), memo, "/berth-test", boot)
			calls, rerr := os.ReadFile(filepath.Join(dir, "calls"))
			if rerr != nil {
				t.Fatal(rerr)
			}
			return got, all, strings.Count(string(calls), "\n"), err
		}
		got, all, calls, err := choose("boot-1")
		if got.Name != c.chosen || calls != c.calls || (err == nil) != (c.chosen != "") {
			t.Errorf("%s: %+v after %d calls, %v", c.name, got, calls, err)
		}
		if !strings.HasPrefix(got.NoSeccomp, c.seccomp) || (got.NoSeccomp == "") != (c.seccomp == "") {
			t.Errorf("%s: seccomp: %q", c.name, got.NoSeccomp)
		}
		if c.others != "" && !strings.HasSuffix(all[0].Err, c.others) { // the last line, which says it
			t.Errorf("%s: %+v", c.name, all)
		}
		if err != nil && (!strings.Contains(err.Error(), "install runc") || !strings.Contains(err.Error(), c.others)) {
			t.Errorf("%s: %v", c.name, err)
		}
		again, _, calls2, _ := choose("boot-1")
		if c.chosen != "" && (calls2 != calls || again != got) || c.chosen == "" && calls2 == calls {
			t.Errorf("%s: asked again: %+v after %d more calls", c.name, again, calls2-calls)
		}
		if _, _, calls3, _ := choose("boot-2"); calls3 == calls2 {
			t.Errorf("%s: after a reboot it is not tried again", c.name)
		}
	}
}

// TestDamagedMemo: what an older version or half a write left is not believed.
func TestDamagedMemo(t *testing.T) {
	dir := fakeRuntimes(t, map[string]string{"crun": "exit 0"})
	memo := filepath.Join(dir, "memo")
	failed, err := json.Marshal(map[string]any{"Key": trialKey("b"), "All": []trialResult{{Name: "crun", Err: "broken"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", `{"Key":"old","All":[{"Name":"runc"}]}`, string(failed)} {
		if err := os.WriteFile(memo, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, _, err := ChooseOCIRuntime(context.Background(), memo, "/berth-test", "b"); err != nil || got.Name != "crun" {
			t.Errorf("with %q: %+v, %v", text, got, err)
		}
	}
}

// TestLastLines are what an error shows of containerd's log.
func TestLastLines(t *testing.T) {
	s := Supervisor{LogFile: filepath.Join(t.TempDir(), "containerd.log")}
	if got := s.lastLines(3); !strings.Contains(got, "no such file") {
		t.Errorf("without a log: %q", got)
	}
	for _, c := range []struct{ log, want string }{
		{"", ""}, {"a\n", "a"}, {"a\nb\nc\nd\n", "b | c | d"}, {strings.Repeat("x", 1<<20) + "\nlast\n", strings.Repeat("x", 16<<10-6) +
			" | last"},
	} {
		if err := os.WriteFile(s.LogFile, []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := s.lastLines(3); got != c.want {
			t.Errorf("a log of %d bytes shows %d bytes, want %d", len(c.log), len(got), len(c.want))
		}
	}
}
