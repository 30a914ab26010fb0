package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

const (
	childDirEnv = "BERTH_TEST_CHILD_DIR"
	childMark   = "serving: "
	killRounds  = 5
	// ackedPerRound is how many writes of each writer a round waits for before
	// it kills the server, with more in flight.
	ackedPerRound = 20
	writers       = 8
)

// childConfig is what the child prints: enough to make a client.
type childConfig struct{ Host, CA, Cert, Key string }

// TestChildServer is not a test: TestKillLosesNothing runs it in a process of
// its own, to kill.
func TestChildServer(t *testing.T) {
	dir := os.Getenv(childDirEnv)
	if dir == "" {
		t.Skip("runs only as the child of TestKillLosesNothing, which sets " + childDirEnv)
	}
	c := apitest.Start(t, apitest.WithDir(dir))
	line, err := json.Marshal(childConfig{c.Host, c.CAFile, c.CertFile, c.KeyFile})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(childMark + string(line))
	select {} // until killed
}

// TestKillLosesNothing kills the server with SIGKILL under write load, again
// and again: every write it acknowledged is there after the next start.
func TestKillLosesNothing(t *testing.T) {
	dir := t.TempDir()
	acked := map[string]string{}
	var mu sync.Mutex
	for round := range killRounds {
		child, config := startChild(t, dir)
		c := clients(t, config).CoreV1().ConfigMaps("default")
		list, err := c.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for i := range list.Items {
			found[list.Items[i].Name] = string(list.Items[i].UID)
		}
		for name, uid := range acked {
			if found[name] != uid {
				t.Errorf("round %d: acknowledged object %s is lost", round, name)
			}
		}
		enough := make(chan struct{}, writers)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := 0; ; i++ {
					name := fmt.Sprintf("r%d-w%d-%d", round, w, i)
					cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name},
						Data: map[string]string{"k": strings.Repeat("v", 100)}}
					made, err := c.Create(t.Context(), cm, metav1.CreateOptions{})
					if err != nil {
						return // the server is gone
					}
					mu.Lock()
					acked[name] = string(made.UID)
					mu.Unlock()
					if i == ackedPerRound {
						enough <- struct{}{}
					}
				}
			})
		}
		for range writers {
			<-enough
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		child.Wait()
		wg.Wait()
	}
	t.Logf("%d acknowledged writes over %d kills", len(acked), killRounds)
}

func startChild(t *testing.T, dir string) (*exec.Cmd, *rest.Config) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestChildServer$", "-test.timeout=120s")
	child.Env = append(os.Environ(), childDirEnv+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { child.Process.Kill() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), childMark)
		if !ok {
			t.Log(lines.Text())
			continue
		}
		var c childConfig
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		return child, &rest.Config{Host: c.Host, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAFile: c.CA, CertFile: c.Cert,
			KeyFile: c.Key}}
	}
	t.Fatalf("the child ended before it served: %v", lines.Err())
	return nil, nil
}
