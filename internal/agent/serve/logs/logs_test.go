package logs

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const sample = `2026-01-02T03:04:05.000000001Z stdout F one
2026-01-02T03:04:06.000000001Z stderr F two
2026-01-02T03:04:07.000000001Z stdout P thr
2026-01-02T03:04:07.000000002Z stdout F ee
2026-01-02T03:04:08.000000001Z stdout F four
`

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	all := Options{Tail: -1, Limit: -1}
	with := func(change func(*Options)) Options {
		opts := all
		change(&opts)
		return opts
	}
	since, err := time.Parse(time.RFC3339, "2026-01-02T03:04:06Z")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		opts Options
		want string
	}{
		{"all", all, "one\ntwo\nthree\nfour\n"},
		{"tail", with(func(o *Options) { o.Tail = 1 }), "four\n"},
		{"tail nothing", with(func(o *Options) { o.Tail = 0 }), ""},
		{"tail more than there is", with(func(o *Options) { o.Tail = 100 }), "one\ntwo\nthree\nfour\n"},
		{"limit", with(func(o *Options) { o.Limit = 6 }), "one\ntw"},
		{"since", with(func(o *Options) { o.Since = since }), "two\nthree\nfour\n"},
		{"stderr", with(func(o *Options) { o.Stderr = true }), "two\n"},
		{"stdout", with(func(o *Options) { o.Stdout = true }), "one\nthree\nfour\n"},
		{"timestamps", with(func(o *Options) { o.Timestamps, o.Tail = true, 3 }),
			"2026-01-02T03:04:07.000000001Z three\n2026-01-02T03:04:08.000000001Z four\n"},
		{"limit counts timestamps", with(func(o *Options) { o.Timestamps, o.Limit = true, 33 }), "2026-01-02T03:04:05.000000001Z one"[:33]},
		{"follow an ended container", with(func(o *Options) { o.Follow = true }), "one\ntwo\nthree\nfour\n"},
	} {
		var out bytes.Buffer
		if err := Read(context.Background(), path, test.opts, &out); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if out.String() != test.want {
			t.Errorf("%s: got %q, want %q", test.name, out.String(), test.want)
		}
	}
}

func TestMissingFileIsAnError(t *testing.T) {
	if err := Read(context.Background(), filepath.Join(t.TempDir(), "none"), Options{Tail: -1, Limit: -1}, io.Discard); err == nil {
		t.Error("reading a missing file succeeded")
	}
}

// TestFollowLosesNothing writes lines in torn pieces, rotates at random, and
// wants every line exactly once and in order.
func TestFollowLosesNothing(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	const lines = 2000
	exited := make(chan struct{})
	pipe, in := io.Pipe()
	go func() {
		in.CloseWithError(Read(context.Background(), path, Options{Follow: true, Tail: -1, Limit: -1, Exited: exited}, in))
	}()
	go func() {
		defer close(exited)
		for i := range lines {
			text := fmt.Sprintf("2026-01-02T03:04:05.%09dZ stdout F line %d %s\n", i, i, strings.Repeat("x", random.IntN(300)))
			cut := random.IntN(len(text))
			io.WriteString(file, text[:cut])
			io.WriteString(file, text[cut:])
			if random.IntN(100) == 0 {
				if err := os.Rename(path, fmt.Sprintf("%s.%d", path, i)); err != nil {
					t.Error(err)
				}
				file.Close()
				if file, err = os.Create(path); err != nil {
					t.Error(err)
				}
			}
		}
		file.Close()
	}()
	out, err := io.ReadAll(pipe)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	next := 0
	for _, line := range got {
		var n int
		if _, err := fmt.Sscanf(line, "line %d", &n); err != nil {
			t.Fatalf("seed %d: line %q is torn", seed, line)
		}
		if n < next {
			t.Fatalf("seed %d: line %d came again after %d", seed, n, next)
		}
		next = n + 1
	}
	// Two rotations between two looks hide the file in between, as they do
	// for every reader; the last file is always delivered whole.
	if next != lines {
		t.Errorf("seed %d: the last line was %d, want %d", seed, next-1, lines-1)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	pipe, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Read(ctx, path, Options{Follow: true, Tail: -1, Limit: -1, Exited: make(chan struct{})}, in)
	}()
	first := make([]byte, 4)
	if _, err := io.ReadFull(pipe, first); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, pipe)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	in.Close()
}

func BenchmarkRead(b *testing.B) {
	path := filepath.Join(b.TempDir(), "0.log")
	if err := os.WriteFile(path, bytes.Repeat([]byte(sample), 40_000), 0o600); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(sample)) * 40_000)
	for b.Loop() {
		if err := Read(context.Background(), path, Options{Tail: -1, Limit: -1}, io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

// TestEndlessLineIsLeftOut: what no runtime writes does not fill memory, and
// the lines around it are there.
func TestEndlessLineIsLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.log")
	const stamp = "2016-10-06T00:17:09.669794202Z stdout F "
	text := stamp + "before\n" + stamp + strings.Repeat("x", 4*maxLine) + "\n" + stamp + "after\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out strings.Builder
	r := &reader{path: path, file: file, buf: bufio.NewReader(file), out: &out, left: -1, lineStart: true}
	if err := r.drain(t.Context()); err != nil || out.String() != "before\nafter\n" {
		t.Errorf("%v, %d bytes", err, out.Len())
	}
	if cap(r.pending) > 2*maxLine {
		t.Errorf("%d bytes are held", cap(r.pending))
	}
}

// FuzzParse takes in any line of a log file, which a runtime or a pod wrote.
func FuzzParse(f *testing.F) {
	f.Add([]byte("2016-10-06T00:17:09.669794202Z stdout F text\n"))
	f.Add([]byte("2016-10-06T00:17:09Z stderr P:x \n"))
	f.Fuzz(func(t *testing.T, line []byte) {
		if r, err := parse(line); err == nil && (r.Stream != "stdout" && r.Stream != "stderr" || r.Time.IsZero() &&
			!strings.HasPrefix(r.Stamp, "0001")) {
			t.Errorf("%q is %+v", line, r)
		}
	})
}
