package snapshot

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds what a file may ask of the decompressor's memory.
const maxWindow = 8 << 20

// source gives a part's bytes.
type source struct {
	filePart
	open func() (io.ReadCloser, error)
}

// writePayload writes the manifest and the parts, sealed by keys.
func writePayload(w io.Writer, keys Keys, m manifest, parts []source) error {
	sealed, err := keys.seal(w)
	if err != nil {
		return err
	}
	packed, err := zstd.NewWriter(sealed, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(1<<20))
	if err != nil {
		return fmt.Errorf("starting compression: %w", err)
	}
	tw := tar.NewWriter(packed)
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the manifest: %w", err)
	}
	entry := func(name string, size int64) error {
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: m.Time,
			Format: tar.FormatPAX})
	}
	if err := entry(manifestName, int64(len(data))); err != nil {
		return err
	}
	if _, err := tw.Write(data); err != nil {
		return err
	}
	for _, p := range parts {
		if err := entry(p.Name, p.Bytes); err != nil {
			return err
		}
		if err := copyPart(tw, p); err != nil {
			return fmt.Errorf("writing part %s: %w", p.Name, err)
		}
	}
	return errors.Join(tw.Close(), packed.Close(), sealed.Close())
}

func copyPart(w io.Writer, p source) error {
	r, err := p.open()
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(w, r)
	if err == nil && n != p.Bytes {
		return fmt.Errorf("it has %d bytes now and had %d", n, p.Bytes)
	}
	return err
}

// sink takes a part's bytes. It is closed when all of them came and their
// SHA-256 was right.
type sink func(filePart) (io.WriteCloser, error)

// discard checks a file without keeping anything of it.
func discard(filePart) (io.WriteCloser, error) { return nopCloser{io.Discard}, nil }

// read opens a snapshot whose header was read already, checks all of it and
// gives each part to into. r begins with the payload. An error may come after
// parts were given: into must write to where nobody looks yet.
func read(file string, h Header, keys Keys, r io.Reader, into sink) (*manifest, error) {
	limited := &io.LimitedReader{R: r, N: h.PayloadBytes}
	clear, err := keys.open(file, h.Sealed, limited)
	if err != nil {
		return nil, err
	}
	packed, err := zstd.NewReader(clear, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("reading snapshot %s: %w", file, err)
	}
	defer packed.Close()
	m, err := readTar(file, h, packed, into)
	if err != nil {
		return nil, fmt.Errorf("snapshot %s is damaged or was changed: %w", file, err)
	}
	// To the end: the seal's last block says that nothing is missing.
	if n, err := io.Copy(io.Discard, packed); n > 0 || err != nil {
		return nil, fmt.Errorf("snapshot %s is damaged or was changed: %d bytes follow its parts (%w)", file, n, cause(err))
	}
	if n, err := io.Copy(io.Discard, clear); n > 0 || err != nil {
		return nil, fmt.Errorf("snapshot %s is damaged or was changed: %d bytes follow its payload (%w)", file, n, cause(err))
	}
	if n, err := io.Copy(io.Discard, r); limited.N > 0 || n > 0 || err != nil {
		return nil, fmt.Errorf("snapshot %s is damaged or was changed: its length is not what its header says (%w)", file, cause(err))
	}
	return m, nil
}

func cause(err error) error {
	if err == nil {
		return errors.New("none should")
	}
	return err
}

func readTar(file string, h Header, r io.Reader, into sink) (*manifest, error) {
	tr := tar.NewReader(r)
	m := &manifest{}
	size, err := nextEntry(tr, manifestName, maxManifest)
	if err != nil {
		return nil, err
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(tr, data); err != nil {
		return nil, fmt.Errorf("reading its manifest: %w", err)
	}
	if err := strictJSON(data, m); err != nil {
		return nil, fmt.Errorf("reading its manifest: %w", err)
	}
	if err := m.check(file); err != nil {
		return nil, err
	}
	if !m.same(h) {
		return nil, errors.New("what its header says is not what it holds")
	}
	if err := m.checkParts(); err != nil {
		return nil, err
	}
	for _, p := range m.Parts {
		if size, err = nextEntry(tr, p.Name, p.Bytes); err == nil && size != p.Bytes {
			err = fmt.Errorf("part %s has %d bytes, its manifest says %d", p.Name, size, p.Bytes)
		}
		if err == nil {
			err = readPart(tr, p, into)
		}
		if err != nil {
			return nil, err
		}
	}
	if _, err := tr.Next(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("more follows its last part (%w)", cause(err))
	}
	return m, nil
}

// nextEntry goes to the next entry, which must be the plain file of that name.
func nextEntry(tr *tar.Reader, name string, limit int64) (int64, error) {
	e, err := tr.Next()
	if err != nil {
		return 0, fmt.Errorf("looking for part %s: %w", name, err)
	}
	if e.Name != name || e.Typeflag != tar.TypeReg {
		return 0, fmt.Errorf("part %q (type %q) is where %s must be", e.Name, e.Typeflag, name)
	}
	if e.Size < 0 || e.Size > limit {
		return 0, fmt.Errorf("part %s has %d bytes, allowed are %d", name, e.Size, limit)
	}
	return e.Size, nil
}

func readPart(r io.Reader, p filePart, into sink) error {
	w, err := into(p)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, sum), r); err != nil {
		w.Close()
		return fmt.Errorf("reading part %s: %w", p.Name, err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("writing part %s: %w", p.Name, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != p.SHA256 {
		return fmt.Errorf("part %s has SHA-256 %s, its manifest says %s", p.Name, got, p.SHA256)
	}
	return nil
}
