// Command registry is an image registry for tests. One archive is served as
// tags 1 to 8 of several repositories that behave differently:
//
//	open/     to everybody
//	private/  to who shows user and password, by a token
//	slow/     blobs at a fixed rate
//	flaky/    the first two blobs that are asked for break off in the middle
//	broken/   every blob breaks off in the middle
//
// It prints the address it listens on.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	archive := flag.String("archive", "", "image archive to serve; required")
	user := flag.String("user", "user", "who may read private/")
	password := flag.String("password", "password", "password of that user")
	rate := flag.Int("rate", 1<<20, "bytes per second of slow/")
	flag.Parse()
	if err := run(*archive, *user, *password, *rate); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

func run(archive, user, password string, rate int) error {
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if err := fill(images, archive); err != nil {
		return fmt.Errorf("loading %s: %w", archive, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var token [16]byte
	_, _ = rand.Read(token[:])
	fmt.Println(l.Addr())
	return http.Serve(l, &front{
		images: images, addr: l.Addr().String(), user: user, password: password, token: hex.EncodeToString(token[:]), rate: rate, flaky: 2,
	})
}

// fill puts the archive's only image under all repositories.
func fill(images http.Handler, archive string) error {
	dir, err := os.MkdirTemp("", "registry")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("tar", "-C", dir, "-xf", archive).CombinedOutput(); err != nil {
		return fmt.Errorf("unpacking: %w: %s", err, out)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return err
	}
	for _, repo := range []string{"open", "private", "slow", "flaky", "broken"} {
		for tag := 1; tag <= 8; tag++ {
			if err := push(images, img, fmt.Sprintf("127.0.0.1:1/%s/toolbox:%d", repo, tag)); err != nil {
				return err
			}
		}
	}
	return nil
}

// push stores the image with a layer of its own, so that no runtime can have
// it already.
func push(images http.Handler, img v1.Image, at string) error {
	ref, err := name.ParseReference(at, name.Insecure)
	if err != nil {
		return err
	}
	layer, err := random.Layer(1<<20, types.OCILayer)
	if err != nil {
		return err
	}
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return err
	}
	return remote.Write(ref, img, remote.WithTransport(direct{images}))
}

// direct is a transport that needs no network.
type direct struct{ to http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	d.to.ServeHTTP(w, r)
	answer := w.Result()
	answer.Request = r
	return answer, nil
}

// front decides how a repository behaves.
type front struct {
	images                      http.Handler
	addr, user, password, token string
	rate                        int

	mu    sync.Mutex
	flaky int // blobs that still break
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/token" {
		f.issue(w, r)
		return
	}
	repo, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/")
	blob := r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/")
	switch {
	case repo == "private" && r.Header.Get("Authorization") != "Bearer "+f.token:
		w.Header().Set("WWW-Authenticate",
			fmt.Sprintf(`Bearer realm="http://%s/token",service="test",scope="repository:private/toolbox:pull"`, f.addr))
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
	case repo == "slow" && blob:
		f.images.ServeHTTP(&throttled{ResponseWriter: w, rate: f.rate}, r)
	case blob && (repo == "broken" || repo == "flaky" && f.breaks()):
		f.images.ServeHTTP(&cut{ResponseWriter: w}, r)
	default:
		f.images.ServeHTTP(w, r)
	}
}

func (f *front) breaks() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flaky--
	return f.flaky >= 0
}

func (f *front) issue(w http.ResponseWriter, r *http.Request) {
	user, password, ok := r.BasicAuth()
	if !ok && r.Method == http.MethodPost {
		user, password = r.FormValue("username"), r.FormValue("password")
	}
	if user != f.user || password != f.password {
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"wrong user or password"}]}`, http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"token": f.token, "access_token": f.token})
}

// throttled writes at a rate.
type throttled struct {
	http.ResponseWriter
	rate int
}

func (t *throttled) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n := min(t.rate/10+1, len(b)-done)
		if _, err := t.ResponseWriter.Write(b[done : done+n]); err != nil {
			return done, err
		}
		_ = http.NewResponseController(t.ResponseWriter).Flush()
		done += n
		time.Sleep(100 * time.Millisecond)
	}
	return len(b), nil
}

// cut breaks the connection in the middle of the body.
type cut struct{ http.ResponseWriter }

func (c *cut) Write(b []byte) (int, error) {
	_, _ = c.ResponseWriter.Write(b[:len(b)/2])
	_ = http.NewResponseController(c.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}
