package images

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Accepted says what Load takes, for errors and help.
const Accepted = "accepted are archives of `docker save`, OCI archives and OCI layout directories, plain or compressed with gzip or zstd"

const (
	// maxDocument bounds what is read into memory of one manifest, index or
	// configuration, in bytes.
	maxDocument = 4 << 20
	// maxEntries bounds the files of an archive.
	maxEntries = 100_000
	// maxLinks bounds a chain of links between files of an archive.
	maxLinks = 8
)

// sink keeps blobs while an archive is read.
type sink interface {
	// put stores all of r and returns its digest and size. want, if set, is the
	// digest it must have.
	put(r io.Reader, want string) (digest string, size int64, err error)
	// get returns a blob of at most maxDocument bytes.
	get(digest string) ([]byte, error)
}

// blob is a file of an archive that the sink has.
type blob struct {
	digest string
	size   int64
	// compression is "", "gzip" or "zstd".
	compression string
}

// contents is what an archive held.
type contents struct {
	index, manifest []byte // index.json and manifest.json; nil if absent
	files           map[string]blob
	blobs           map[string]int64  // size by digest
	links           map[string]string // to another file of the archive
}

// readArchive reads an archive to its end and puts its files into the sink. dir
// is on the filesystem that they go to.
func readArchive(r io.Reader, to sink, dir string) (*contents, error) {
	plain, done, err := decompress(r)
	if err != nil {
		return nil, err
	}
	defer done()
	c := &contents{files: map[string]blob{}, blobs: map[string]int64{}, links: map[string]string{}}
	tr := tar.NewReader(bound(plain, dir))
	for n := 0; ; n++ {
		h, err := tr.Next()
		switch {
		case errors.Is(err, io.EOF):
			return c, c.complete()
		case err != nil && n == 0 && !remote(err):
			return nil, fmt.Errorf("it is not an archive (%w): %s", err, Accepted)
		case err != nil:
			return nil, broken(err)
		case n == maxEntries:
			return nil, fmt.Errorf("it has more than %d files: no image archive has so many", maxEntries)
		}
		if err := c.entry(h, tr, to); err != nil {
			return nil, err
		}
	}
}

// remote says whether reading failed for another reason than what was read.
func remote(err error) bool {
	var limit *limitError
	return errors.As(err, &limit) || errors.Is(err, io.ErrClosedPipe)
}

// broken is the error of an archive that ends or breaks off inside.
func broken(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("it ends in the middle (%w): it is truncated; copy or save it again", err)
	}
	return fmt.Errorf("reading it: %w", err)
}

// decompress looks at the first bytes only: names lie.
func decompress(r io.Reader) (plain io.Reader, done func(), err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	head, err := in.Peek(6)
	if len(head) == 0 {
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, nil, broken(err)
		}
		return nil, nil, errors.New("it is empty: " + Accepted)
	}
	switch compressionOf(head) {
	case "gzip":
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, broken(err)
		}
		return z, func() {}, nil
	case "zstd":
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, nil, broken(err)
		}
		return z, z.Close, nil
	}
	for name, magic := range map[string]string{"bzip2": "BZh", "xz": "\xfd7zXZ\x00", "lz4": "\x04\x22\x4d\x18"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return nil, nil, fmt.Errorf("it is compressed with %s: %s", name, Accepted)
		}
	}
	return in, func() {}, nil
}

func compressionOf(head []byte) string {
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return "gzip"
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return "zstd"
	}
	return ""
}

func (c *contents) entry(h *tar.Header, r io.Reader, to sink) error {
	name := clean(h.Name)
	switch h.Typeflag {
	case tar.TypeSymlink:
		c.links[name] = clean(path.Join(path.Dir(name), h.Linkname))
		return nil
	case tar.TypeLink:
		c.links[name] = clean(h.Linkname)
		return nil
	case tar.TypeReg:
	default:
		return nil
	}
	var err error
	switch {
	case name == "index.json":
		c.index, err = document(name, r)
		return err
	case name == "manifest.json":
		c.manifest, err = document(name, r)
		return err
	case h.Size == 0 || name == "oci-layout" || name == "repositories":
		return nil
	}
	in := bufio.NewReaderSize(r, 64<<10)
	head, _ := in.Peek(4)
	b := blob{compression: compressionOf(head)}
	if b.digest, b.size, err = to.put(in, digestOfPath(name)); err != nil {
		if remote(err) || errors.Is(err, io.ErrUnexpectedEOF) {
			return broken(err)
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	c.files[name], c.blobs[b.digest] = b, b.size
	return nil
}

// digestOfPath is the digest that a file of an OCI layout must have.
func digestOfPath(name string) string {
	if rest, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && len(rest) == 64 {
		return "sha256:" + rest
	}
	return ""
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func document(name string, r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return nil, broken(err)
	}
	if len(data) > maxDocument {
		return nil, fmt.Errorf("%s is larger than %d MiB: no image needs that", name, maxDocument>>20)
	}
	return data, nil
}

// complete checks that there is something that names images.
func (c *contents) complete() error {
	if c.index == nil && c.manifest == nil {
		return errors.New("it has neither an index.json (OCI) nor a manifest.json (docker save): it is no image archive, or it is " +
			"truncated; " + Accepted)
	}
	return nil
}

// file follows links to a file.
func (c *contents) file(name string) (blob, bool) {
	name = clean(name)
	for range maxLinks {
		if b, ok := c.files[name]; ok {
			return b, true
		}
		next, ok := c.links[name]
		if !ok {
			return blob{}, false
		}
		name = next
	}
	return blob{}, false
}
