package images

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// limitError is an archive that the node has no room for.
type limitError struct {
	limit int64
	dir   string
}

func (e *limitError) Error() string {
	return fmt.Sprintf("it is larger than the %d MiB that may be taken of the free space of %s: make room there (`berth image prune`)",
		e.limit>>20, e.dir)
}

// bound ends a reader with an error once it gave more than 90 % of what is free
// on dir's filesystem: an archive of a few bytes can unpack to any size.
func bound(r io.Reader, dir string) io.Reader {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return r
	}
	return &bounded{r: r, left: int64(st.Bavail) * st.Bsize / 10 * 9, err: &limitError{int64(st.Bavail) * st.Bsize / 10 * 9, dir}}
}

type bounded struct {
	r    io.Reader
	left int64
	err  error
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, b.err
	}
	return n, err
}
