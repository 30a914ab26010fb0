package images

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// chunk is how much of a blob one message carries, in bytes.
const chunk = 1 << 20

// put streams a blob into the content store. The store has it under its digest
// only if all of it came.
func (b *blobs) put(r io.Reader, want string) (digest string, size int64, err error) {
	hash := sha256.New()
	in := &counted{r: io.TeeReader(r, hash)}
	b.n++
	ref := fmt.Sprintf("%s-%d", b.ref, b.n)
	err = b.stream(ref, in, want, func() string { return fmt.Sprintf("sha256:%x", hash.Sum(nil)) })
	if exists := status.Code(err) == codes.AlreadyExists; exists {
		_, err = io.Copy(io.Discard, in) // the store has it; what comes is looked at all the same
	}
	digest = fmt.Sprintf("sha256:%x", hash.Sum(nil))
	if err == nil && want != "" && digest != want {
		err = fmt.Errorf("its bytes have the digest %s: the archive is damaged", digest)
	}
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), 10*time.Second)
		defer cancel()
		_, _ = b.content.Abort(closing, &contentapi.AbortRequest{Ref: ref}) // there may be nothing to abort
		return "", 0, err
	}
	return digest, in.n, nil
}

// stream writes and commits a blob; AlreadyExists is returned as it is.
func (b *blobs) stream(ref string, in io.Reader, want string, digest func() string) error {
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	w, err := b.content.Write(ctx)
	if err != nil {
		return fmt.Errorf("writing to the content store: %w", err)
	}
	// The store must be done with the blob before it can be told to forget it:
	// else both write in its directory at once, and some of it stays.
	defer func() {
		_ = w.CloseSend()
		for err == nil {
			_, err = w.Recv()
		}
	}()
	send := func(req *contentapi.WriteContentRequest) error {
		// An error of Send is told by Recv.
		if err := w.Send(req); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, err := w.Recv()
		return err
	}
	buf := make([]byte, chunk)
	for off := int64(0); ; {
		n, err := io.ReadFull(in, buf)
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && !truncated(in)
		if err != nil && !last {
			return err
		}
		req := &contentapi.WriteContentRequest{Action: contentapi.WriteAction_WRITE, Ref: ref, Offset: off, Data: buf[:n], Expected: want}
		if last {
			req.Action = contentapi.WriteAction_COMMIT
			if req.Expected = digest(); want != "" && want != req.Expected {
				return nil // put tells
			}
			req.Total = off + int64(n)
		}
		if err := send(req); err != nil {
			return storeError(err)
		}
		if off += int64(n); last {
			return w.CloseSend()
		}
	}
}

func storeError(err error) error {
	if status.Code(err) == codes.AlreadyExists {
		return err
	}
	return fmt.Errorf("writing to the content store: %w", err)
}

// counted counts what is read and remembers how it ended: io.ReadFull gives the
// same error for the last part of a blob and for a source that is truncated.
type counted struct {
	r   io.Reader
	n   int64
	err error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil {
		c.err = err
	}
	return n, err
}

func truncated(r io.Reader) bool {
	c, ok := r.(*counted)
	return ok && errors.Is(c.err, io.ErrUnexpectedEOF)
}
