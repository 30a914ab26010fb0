package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

func TestEmptyDirOnDiskKeepsWhatThePodDidToIt(t *testing.T) {
	m := newTestManager(t, Config{})
	pod := testPod("a", emptyDirVolume("work", ""))
	dir := mustMount(t, m, pod)["work"].HostPath
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o777 {
		t.Errorf("mode %v, want 0777", info.Mode())
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mustMount(t, m, pod)
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("a second mount changed the mode to %v", info.Mode())
	}
	if readFile(t, dir, "f") != "x" {
		t.Error("contents changed")
	}
	mustUnmount(t, m, "a")
}

func TestEmptyDirMemoryIsBoundedTmpfs(t *testing.T) {
	needRoot(t)
	m := newTestManager(t, Config{Allocatable: func() v1.ResourceList {
		return v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}
	}})
	vol := emptyDirVolume("mem", v1.StorageMediumMemory)
	limit := resource.MustParse("8Mi")
	vol.EmptyDir.SizeLimit = &limit
	pod := testPod("a", vol)
	dir := mustMount(t, m, pod)["mem"].HostPath
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if st.Type != unix.TMPFS_MAGIC || int64(st.Blocks)*st.Bsize != 8<<20 {
		t.Errorf("type %x size %d, want tmpfs of 8 MiB", st.Type, int64(st.Blocks)*st.Bsize)
	}
	// A reboot keeps the mark and loses the mount.
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	mustMount(t, m, pod)
	if ok, _ := isMount(dir); !ok {
		t.Error("not mounted again")
	}
	mustUnmount(t, m, "a")
}

func TestFSGroupOwnsEmptyDirAndPayload(t *testing.T) {
	needRoot(t)
	m := newTestManager(t, Config{})
	pod := testPod("a", emptyDirVolume("work", ""), downwardVolume("info"))
	group := int64(4321)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	out := mustMount(t, m, pod)
	check := func(path string, mode os.FileMode) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if gid := info.Sys().(*syscall.Stat_t).Gid; gid != 4321 {
			t.Errorf("%s: group %d", path, gid)
		}
		if info.Mode()&^os.ModeDir != mode {
			t.Errorf("%s: mode %v, want %v", path, info.Mode(), mode)
		}
	}
	check(out["work"].HostPath, os.ModeSetgid|0o777)
	check(filepath.Join(out["info"].HostPath, "name"), 0o644)
	check(filepath.Join(out["info"].HostPath, "..data"), os.ModeSetgid|0o755)
	mustUnmount(t, m, "a")
}

func TestDownwardFollowsTheLabels(t *testing.T) {
	needRoot(t)
	m := newTestManager(t, Config{})
	pod := testPod("a", downwardVolume("info"))
	dir := mustMount(t, m, pod)["info"].HostPath
	if got := readFile(t, dir, "meta", "labels"); got != `app="a"` {
		t.Errorf("labels %q", got)
	}
	if target, _ := os.Readlink(filepath.Join(dir, "meta")); target != "..data/meta" {
		t.Errorf("meta links to %q", target)
	}
	before, _ := os.Readlink(filepath.Join(dir, "..data"))
	next := pod.DeepCopy()
	next.Labels["app"] = "b"
	written := make(chan struct{})
	watchDir(t, dir, func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "meta", "labels"))
		return string(b) == `app="b"`
	}, written)
	m.Update(next)
	<-written
	if after, _ := os.Readlink(filepath.Join(dir, "..data")); after == before {
		t.Error("contents changed in place")
	}
	mustUnmount(t, m, "a")
}

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	sock := filepath.Join(dir, "sock")
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: sock}); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	fails := func(p, want string) string { return "hostPath type check failed: " + p + " is not " + want }
	for _, c := range []struct {
		kind v1.HostPathType
		path string
		want string
	}{
		{v1.HostPathUnset, missing, ""},
		{v1.HostPathDirectory, dir, ""},
		{v1.HostPathDirectory, file, fails(file, "a directory")},
		{v1.HostPathDirectory, missing, fails(missing, "a directory")},
		{v1.HostPathFile, file, ""},
		{v1.HostPathFile, dir, fails(dir, "a file")},
		{v1.HostPathSocket, sock, ""},
		{v1.HostPathSocket, file, fails(file, "a socket file")},
		{v1.HostPathCharDev, "/dev/null", ""},
		{v1.HostPathCharDev, file, fails(file, "a character device")},
		{v1.HostPathBlockDev, "/dev/null", fails("/dev/null", "a block device")},
		{v1.HostPathDirectoryOrCreate, file, fails(file, "a directory")},
		{v1.HostPathDirectoryOrCreate, filepath.Join(dir, "new", "deep"), ""},
		{v1.HostPathFileOrCreate, filepath.Join(dir, "newfile"), ""},
		{v1.HostPathFileOrCreate, filepath.Join(dir, "nope", "f"), "open " + filepath.Join(dir, "nope", "f") +
			": no such file or directory"},
		{v1.HostPathFileOrCreate, dir, fails(dir, "a file")},
		{"Odd", file, "Odd is an invalid volume type"},
	} {
		err := kernel{}.hostPath(&v1.HostPathVolumeSource{Path: c.path, Type: &c.kind})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s %s: got %q, want %q", c.kind, c.path, got, c.want)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "new", "deep")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("DirectoryOrCreate made %v, %v", info, err)
	}
}

func TestRemovalStopsAtMounts(t *testing.T) {
	needRoot(t)
	treasure := t.TempDir()
	keep := filepath.Join(treasure, "keep")
	if err := os.WriteFile(keep, []byte("gold"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, depth := range []string{"m", "a/b/m"} {
		root := filepath.Join(t.TempDir(), "root")
		target := filepath.Join(root, depth)
		if err := os.MkdirAll(target, 0o755); err != nil {
			t.Fatal(err)
		}
		// A bind mount of the same file system has the same device number.
		if err := unix.Mount(treasure, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		err := kernel{}.removeTree(root)
		if !errors.Is(err, errMounted) {
			t.Errorf("%s: removal returned %v", depth, err)
		}
		if readFile(t, keep) != "gold" {
			t.Fatal("deleted through a mount")
		}
		if err := unix.Unmount(target, 0); err != nil {
			t.Fatal(err)
		}
		if err := (kernel{}).removeTree(root); err != nil {
			t.Errorf("after unmounting: %v", err)
		}
	}
}

// A host mount that appears inside a pod's volume is taken down, and what it
// shows stays.
func TestUnmountTakesDownForeignMountsAndKeepsTheirContents(t *testing.T) {
	needRoot(t)
	m := newTestManager(t, Config{})
	treasure := t.TempDir()
	if err := os.WriteFile(filepath.Join(treasure, "keep"), []byte("gold"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := mustMount(t, m, testPod("a", emptyDirVolume("work", "")))["work"].HostPath
	inner := filepath.Join(dir, "sub dir")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // stacked
		if err := unix.Mount(treasure, inner, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	mustUnmount(t, m, "a")
	if readFile(t, treasure, "keep") != "gold" {
		t.Error("deleted through a mount")
	}
}

func TestUnknownVolumeKindSaysWhat(t *testing.T) {
	var ev events
	m := newTestManager(t, Config{Event: ev.add})
	pod := testPod("a", v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{}}}, emptyDirVolume("ok", ""))
	out, err := m.Mount(context.Background(), pod)
	var me *MountError
	if !errors.As(err, &me) || len(me.Volumes) != 1 || me.RetryAfter == 0 {
		t.Fatalf("got %v", err)
	}
	if out["ok"].HostPath == "" {
		t.Error("the volume that works is not returned")
	}
	want := `Warning FailedMount MountVolume.SetUp failed for volume "v" : volume kind iscsi is not supported by berth: use a CSI driver`
	if ev.text() != want {
		t.Errorf("events %q", ev.text())
	}
	if !strings.HasPrefix(err.Error(), "unmounted volumes=[v], unattached volumes=[], failed to process volumes=[]: ") {
		t.Errorf("error %q", err)
	}
	mustUnmount(t, m, "a")
}

func TestUnusedVolumesAreNotMounted(t *testing.T) {
	m := newTestManager(t, Config{})
	pod := testPod("a", emptyDirVolume("used", ""), emptyDirVolume("unused", ""))
	pod.Spec.Containers[0].VolumeMounts = pod.Spec.Containers[0].VolumeMounts[:1]
	if out := mustMount(t, m, pod); len(out) != 1 {
		t.Errorf("mounted %v", out)
	}
	mustUnmount(t, m, "a")
}

func TestOrphansAreRemovedAndStrangersKept(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	first := New(Config{RootDir: root})
	for i := range 3 {
		mustMount(t, first, testPod(fmt.Sprint("p", i), emptyDirVolume("mem", v1.StorageMediumMemory), downwardVolume("info")))
	}
	first.Close()
	stray := filepath.Join(root, "pods", "not a pod")
	if err := os.MkdirAll(stray, 0o755); err != nil {
		t.Fatal(err)
	}
	m := newTestManager(t, Config{RootDir: root})
	err := m.Orphans(context.Background(), func(uid types.UID) bool { return uid == "p1" })
	if err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(filepath.Join(root, "pods"))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if strings.Join(names, ",") != "not a pod,p1" {
		t.Errorf("left %v", names)
	}
	mustUnmount(t, m, "p1")
}

// What a sync of a running pod costs: nothing changed, nothing is written.
func BenchmarkMountUnchanged(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root to mount file systems")
	}
	m := New(Config{RootDir: b.TempDir()})
	defer m.Close()
	pod := testPod("a", emptyDirVolume("mem", v1.StorageMediumMemory), downwardVolume("info"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Mount(context.Background(), pod); err != nil {
			b.Fatal(err)
		}
	}
	if err := m.Unmount(context.Background(), "a"); err != nil {
		b.Fatal(err)
	}
}

// What a pod's volumes cost over its life.
func BenchmarkMountUnmount(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root to mount file systems")
	}
	m := New(Config{RootDir: b.TempDir()})
	defer m.Close()
	pod := testPod("a", emptyDirVolume("mem", v1.StorageMediumMemory), downwardVolume("info"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Mount(context.Background(), pod); err != nil {
			b.Fatal(err)
		}
		if err := m.Unmount(context.Background(), "a"); err != nil {
			b.Fatal(err)
		}
	}
}
