// Package fs measures file systems, under the name by which the upstream
// hostpath driver asks for it.
package fs

import "golang.org/x/sys/unix"

// FsInfo returns bytes available to users, bytes in all and bytes used, and
// inodes in all, free and used, of the file system that holds path.
func FsInfo(path string) (available, capacity, usage, inodes, inodesFree, inodesUsed int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, 0, 0, 0, 0, err
	}
	block := int64(st.Bsize)
	return int64(st.Bavail) * block, int64(st.Blocks) * block, int64(st.Blocks-st.Bfree) * block,
		int64(st.Files), int64(st.Ffree), int64(st.Files - st.Ffree), nil
}
