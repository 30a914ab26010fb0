package localvolume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyTree copies what is in the directory src into the empty directory dst:
// contents, owners, modes, times, extended attributes, links. A pod may change
// src meanwhile: every step goes from a directory's handle to a name in it, so
// no link is followed and nothing outside src is read. Sockets and what is
// mounted below src are left out. Where the filesystem can, both share blocks
// until one changes.
func copyTree(ctx context.Context, src, dst string) error {
	from, err := unix.Open(src, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: src, Err: err}
	}
	defer unix.Close(from)
	to, err := unix.Open(dst, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dst, Err: err}
	}
	defer unix.Close(to)
	c := copier{ctx: ctx, root: to, links: map[[2]uint64]string{}}
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	c.device = st.Dev
	if err := c.children(from, to, "."); err != nil {
		return err
	}
	return finish(from, to, &st)
}

type copier struct {
	ctx    context.Context
	root   int
	device uint64
	// links are the copies of files with several names, by device and inode.
	links map[[2]uint64]string
}

func (c *copier) children(from, to int, path string) error {
	// A handle of its own: reading moves its position, and closing it is File's.
	again, err := unix.Openat(from, ".", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(again), path)
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if err := c.entry(from, to, path, name); err != nil {
				return fmt.Errorf("%s/%s: %w", path, name, err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *copier) entry(from, to int, path, name string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || err == nil && st.Dev != c.device {
		return nil // gone meanwhile, or another filesystem
	}
	if err != nil {
		return err
	}
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		id := [2]uint64{st.Dev, st.Ino}
		if first, ok := c.links[id]; ok {
			return unix.Linkat(c.root, first, to, name, 0)
		}
		c.links[id] = path + "/" + name
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return c.directory(from, to, path, name)
	case unix.S_IFREG:
		return c.file(from, to, name)
	case unix.S_IFLNK:
		return c.link(from, to, name, &st)
	case unix.S_IFSOCK:
		return nil // no one would listen on it
	}
	if err := unix.Mknodat(to, name, st.Mode, int(st.Rdev)); err != nil {
		return err
	}
	if err := unix.Fchownat(to, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(to, name, st.Mode&0o7777, 0)
}

func (c *copier) directory(from, to int, path, name string) error {
	src, err := unix.Openat(from, name, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if replaced(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(src)
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil || st.Dev != c.device {
		return err
	}
	if err := unix.Mkdirat(to, name, 0o700); err != nil {
		return err
	}
	dst, err := unix.Openat(to, name, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	if err := c.children(src, dst, path+"/"+name); err != nil {
		return err
	}
	return finish(src, dst, &st)
}

func (c *copier) file(from, to int, name string) error {
	// Without O_NONBLOCK a name swapped for a pipe would be waited for.
	src, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if replaced(err) {
		return nil
	}
	if err != nil {
		return err
	}
	in := os.NewFile(uintptr(src), name)
	defer in.Close()
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Dev != c.device {
		return nil
	}
	dst, err := unix.Openat(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(dst), name)
	defer out.Close()
	if err := copyData(c.ctx, in, out, st.Size); err != nil {
		return err
	}
	return finish(src, dst, &st)
}

func (c *copier) link(from, to int, name string, st *unix.Stat_t) error {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(from, name, target)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil // gone, or no link any more
	}
	if err != nil {
		return err
	}
	if err := unix.Symlinkat(string(target[:n]), to, name); err != nil {
		return err
	}
	return unix.Fchownat(to, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW)
}

// replaced reports whether err shows that a name was replaced by another file since it
// was looked up.
func replaced(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENXIO)
}

// finish gives an open copy the owner, mode, attributes and times of st, in
// the order in which no step undoes another.
func finish(from, to int, st *unix.Stat_t) error {
	if err := unix.Fchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := copyAttributes(from, to); err != nil { // a new owner would lose the capabilities of a file
		return err
	}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil {
		return err
	}
	times := []unix.Timeval{unix.NsecToTimeval(unix.TimespecToNsec(st.Atim)), unix.NsecToTimeval(unix.TimespecToNsec(st.Mtim))}
	return unix.Futimes(to, times)
}

func copyAttributes(from, to int) error {
	names := make([]byte, 64<<10)
	n, err := unix.Flistxattr(from, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return err
	}
	value := make([]byte, 64<<10)
	for _, name := range splitNames(names[:n]) {
		size, err := unix.Fgetxattr(from, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return err
		}
		if err := unix.Fsetxattr(to, name, value[:size], 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("extended attribute %s: %w", name, err)
		}
	}
	return nil
}

func splitNames(list []byte) []string {
	var out []string
	for start, i := 0, 0; i < len(list); i++ {
		if list[i] == 0 {
			out = append(out, string(list[start:i]))
			start = i + 1
		}
	}
	return out
}

// copyData shares the blocks of in where the filesystem can, and otherwise
// copies what is not a hole.
func copyData(ctx context.Context, in, out *os.File, size int64) error {
	if err := unix.IoctlFileClone(int(out.Fd()), int(in.Fd())); err == nil {
		return nil
	}
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole up to the end
		}
		if err != nil {
			data = at // a filesystem that knows no holes
		}
		end, err := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			end = size
		}
		end = min(end, size, data+64<<20)
		if end <= data {
			break
		}
		if _, err := in.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := out.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(out, in, end-data); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		at = end
	}
	return out.Truncate(size)
}

// canShare says whether the filesystem of dir lets two files share blocks.
func canShare(dir string) bool {
	a, err := os.CreateTemp(dir, ".share")
	if err != nil {
		return false
	}
	defer func() { _ = a.Close(); _ = os.Remove(a.Name()) }()
	b, err := os.CreateTemp(dir, ".share")
	if err != nil {
		return false
	}
	defer func() { _ = b.Close(); _ = os.Remove(b.Name()) }()
	if _, err := a.Write(make([]byte, 4<<10)); err != nil {
		return false
	}
	return unix.IoctlFileClone(int(b.Fd()), int(a.Fd())) == nil
}
