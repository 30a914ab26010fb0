package localvolume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestLinksOut: links that a pod left in a volume lead nowhere when it is
// copied or deleted, and what is mounted in it is not touched.
func TestLinksOut(t *testing.T) {
	needRoot(t)
	d := open(t, t.TempDir())
	v := d.mustCreate(t, "v", 1<<20, Directory)
	data := d.path("volumes", v.VolumeId, dataDir)
	secret := t.TempDir()
	write(t, filepath.Join(secret, "key"), "secret")
	for name, to := range map[string]string{"dir": secret, "file": filepath.Join(secret, "key"), "up": "../../.."} {
		if err := os.Symlink(to, filepath.Join(data, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.CreateSnapshot(t.Context(), &spec.CreateSnapshotRequest{Name: "s", SourceVolumeId: v.VolumeId}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dir", "file", "up"} {
		if info, err := os.Lstat(d.path("snapshots", "s", dataDir, name)); err != nil || info.Mode().Type() != os.ModeSymlink {
			t.Errorf("the copy of link %s is %v, %v", name, info, err)
		}
	}
	inside := filepath.Join(data, "mounted")
	if err := os.Mkdir(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(secret, inside, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(inside, unix.MNT_DETACH) })
	if _, err := d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: v.VolumeId}); err != nil {
		t.Fatal(err)
	}
	if err := d.empty(t.Context()); err == nil {
		t.Error("a volume with a mount in it was removed")
	}
	if err := unix.Unmount(d.path("trash", v.VolumeId+"-0", dataDir, "mounted"), 0); err != nil {
		t.Fatal(err)
	}
	if err := d.empty(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(secret, "key")); err != nil || string(text) != "secret" {
		t.Errorf("what links led to: %q, %v", text, err)
	}
}

// TestCopy: a copy is what it is of.
func TestCopy(t *testing.T) {
	needRoot(t)
	src, dst := t.TempDir(), t.TempDir()
	write(t, filepath.Join(src, "plain"), "text")
	if err := errors.Join(
		os.Link(filepath.Join(src, "plain"), filepath.Join(src, "second")),
		os.MkdirAll(filepath.Join(src, "a", "b"), 0o750),
		os.Chown(filepath.Join(src, "a"), 12, 34),
		os.Chmod(filepath.Join(src, "a"), 0o2750),
		unix.Mkfifo(filepath.Join(src, "a", "fifo"), 0o640),
		os.Symlink("plain", filepath.Join(src, "link")),
		unix.Setxattr(filepath.Join(src, "plain"), "user.colour", []byte("blue"), 0),
		os.Chtimes(filepath.Join(src, "plain"), time.Unix(1, 0), time.Unix(2, 0)),
	); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(src, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = sparse.WriteAt([]byte("end"), 64<<20)
	if err := errors.Join(err, sparse.Close(), copyTree(t.Context(), src, dst)); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for dir, list := range map[string]*[]string{src: &want, dst: &got} {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			*list = append(*list, describe(t, dir, path))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(want, got) {
		t.Errorf("copied\n%q\nof\n%q", got, want)
	}
	colour := make([]byte, 16)
	if n, err := unix.Getxattr(filepath.Join(dst, "second"), "user.colour", colour); err != nil || string(colour[:n]) != "blue" {
		t.Errorf("attribute %q, %v", colour[:n], err)
	}
}

func describe(t *testing.T, dir, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	rel, _ := filepath.Rel(dir, path)
	out := rel + " " + os.FileMode(st.Mode).String() + " " + time.Duration(st.Nlink).String() + " " + time.Duration(st.Uid).String() +
		time.Duration(st.Gid).String()
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		out += time.Duration(st.Size).String() + " " + time.Duration(st.Blocks/256).String() + time.Unix(st.Mtim.Sec, 0).String()
	}
	return out
}

// TestFull: a disk without room is told as such.
func TestFull(t *testing.T) {
	needRoot(t)
	d := open(t, disk(t, "32m"))
	for _, kind := range []Kind{Directory, Image} {
		_, err := d.CreateVolume(t.Context(), &spec.CreateVolumeRequest{Name: "v", VolumeCapabilities: mounted,
			CapacityRange: &spec.CapacityRange{RequiredBytes: 64 << 20}, Parameters: map[string]string{TypeParameter: string(kind)}})
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: %v", kind, err)
		}
	}
	got, err := d.GetCapacity(t.Context(), &spec.GetCapacityRequest{})
	if err != nil || got.AvailableCapacity <= 0 || got.AvailableCapacity > 32<<20 {
		t.Errorf("capacity %v, %v", got, err)
	}
}

// TestClean ends with its context and removes what is discarded meanwhile.
func TestClean(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, dir)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.clean(ctx) }()
		v := d.mustCreate(t, "v", 1<<20, Directory)
		if _, err := d.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: v.VolumeId}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // until the cleaner has nothing left to do
		if left, err := os.ReadDir(d.path("trash")); err != nil || len(left) > 0 {
			t.Errorf("the trash holds %v, %v", left, err)
		}
		cancel()
		<-done
	})
}
