package why

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/testkit/testtimeout"
	answers "github.com/berth-dev/berth/internal/why"
	"github.com/berth-dev/berth/internal/why/ask"
)

// patience bounds the wait for one fault to show.
var patience = testtimeout.Scale(60 * time.Second)

// look is how often a fault that has not shown yet is asked about: what shows
// it may be an event, a condition or a lease, so that no one watch tells.
const look = 2 * time.Second

// cluster is the `berth up` that the faults are injected into.
type cluster struct {
	bin, dir, node string
}

func start(t *testing.T) *cluster {
	bin := os.Getenv("BERTH_BIN")
	if bin == "" || os.Geteuid() != 0 {
		t.Skip("BERTH_BIN is not set (make e2e sets it), or not root: starting containers needs root")
	}
	dir, err := os.MkdirTemp("", "bw")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{bin: bin, dir: dir}
	t.Cleanup(func() {
		if out, err := c.berth("down", "--data-dir", dir, "--purge"); err != nil {
			t.Errorf("purging: %v\n%s", err, out)
		}
	})
	out, err := c.berth("up", "--detach", "--data-dir", dir, "--ports-from", strconv.Itoa(freePorts(t)))
	if err != nil {
		t.Fatalf("berth up: %v\n%s", err, out)
	}
	if c.node, err = c.kubectl("", "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"); err != nil {
		t.Fatal(c.node, err)
	}
	return c
}

// freePorts finds room for the ports of a cluster below the kernel's own range.
func freePorts(t *testing.T) int {
	for first := 24000 + os.Getpid()%300*16; first < 32000; first += 16 {
		free := true
		for i := range 16 {
			l, err := net.Listen("tcp", ":"+strconv.Itoa(first+i))
			if free = free && err == nil; err == nil {
				l.Close()
			}
		}
		if free {
			return first
		}
	}
	t.Fatal("no free ports")
	return 0
}

func (c *cluster) command(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "berth"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.dir, "admin.kubeconfig"))
	cmd.Stdin, cmd.WaitDelay = strings.NewReader(stdin), time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) berth(args ...string) (string, error) { return c.command("", args...) }

func (c *cluster) kubectl(stdin string, args ...string) (string, error) {
	return c.command(stdin, append([]string{"kubectl"}, args...)...)
}

// request is a new certificate signing request.
func request() (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "x"}}, key)
	if err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), nil
}

// inject makes a fault.
func (c *cluster) inject(f *fault, csr string) error {
	ns := "why-" + f.name
	if out, err := c.kubectl("", "create", "namespace", ns); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if f.yaml != "" {
		yaml := strings.NewReplacer("CSRPEM", csr).Replace(c.fill(f, f.yaml))
		// Pods are refused before the account of their namespace is there.
		out, err := c.kubectl("", "wait", "--for=create", "serviceaccount/default", "-n", ns, "--timeout=60s")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if out, err := c.kubectl(yaml, "apply", "-n", ns, "-f", "-"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	for _, line := range f.run {
		args := strings.Fields(c.fill(f, line))
		if out, err := c.kubectl("", append([]string{"-n", ns}, args...)...); err != nil {
			return fmt.Errorf("kubectl %s: %w: %s", line, err, out)
		}
	}
	return nil
}

func (c *cluster) fill(f *fault, s string) string {
	return strings.NewReplacer("NS", "why-"+f.name, "NODE", c.node, "IMG", "berth.dev/toolbox:1").Replace(s)
}

// why asks until the cause is named or patience ends, and returns the first
// paragraph of the text, whether it is right, and how long the last answer took.
func (c *cluster) why(f *fault) (first string, named bool, took time.Duration) {
	words := strings.Fields(c.fill(f, f.ask))
	for deadline := time.Now().Add(patience); ; time.Sleep(look) {
		began := time.Now()
		out, err := c.berth("why", words[0], words[1], "-n", "why-"+f.name, "--data-dir", c.dir)
		took = time.Since(began)
		head, _, _ := strings.Cut(out, "\n\n")
		first = strings.Join(strings.Fields(head), " ")
		if err == nil && c.hasAll(f, first, f.want) {
			return first, true, took
		}
		if time.Now().After(deadline) {
			return first, false, took
		}
	}
}

func (c *cluster) hasAll(f *fault, text string, words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool {
		return !strings.Contains(strings.ToLower(text), strings.ToLower(c.fill(f, w)))
	})
}

// plain says whether the object's own conditions, its status and its newest
// five events name the cause: what kubectl describe shows without a look at
// any other object. Words may be in any of them.
func (c *cluster) plain(f *fault) bool {
	words := strings.Fields(c.fill(f, f.ask))
	ns := "why-" + f.name
	raw, err := c.kubectl("", "get", words[0], words[1], "-n", ns, "-o", "json")
	if err != nil {
		return false
	}
	var object struct {
		Kind     string          `json:"kind"`
		Metadata json.RawMessage `json:"metadata"`
		Status   json.RawMessage `json:"status"`
	}
	if json.Unmarshal([]byte(raw), &object) != nil {
		return false
	}
	events, err := c.kubectl("", "get", "events", "-n", ns, "--sort-by=.lastTimestamp", "--field-selector", "involvedObject.name="+words[1]+
		",involvedObject.kind="+object.Kind, "-o", `jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
	lines := strings.Split(strings.TrimSpace(events), "\n")
	lines = lines[max(len(lines)-5, 0):]
	naive := f.naive
	if naive == nil {
		naive = f.want
	}
	status := strings.ReplaceAll(string(object.Status), `\"`, `"`)
	return err == nil && c.hasAll(f, status+"\n"+strings.Join(lines, "\n"), naive)
}

// result is how one fault went.
type result struct {
	named, plain bool
	first        string
	took         time.Duration
}

// TestWhy injects every fault of the catalogue (or those whose name matches
// the regular expression BERTH_WHY) and asks why. It prints the
// score beside that of conditions and events alone.
func TestWhy(t *testing.T) {
	c := start(t)
	csr, err := request()
	if err != nil {
		t.Fatal(err)
	}
	faults := catalogue()
	if only := os.Getenv("BERTH_WHY"); only != "" {
		// crash-code stays: the views look at it.
		chosen := regexp.MustCompile("^crash-code$|" + only)
		faults = slices.DeleteFunc(faults, func(f fault) bool { return !chosen.MatchString(f.name) })
	}
	results := make([]result, len(faults))
	var wg sync.WaitGroup
	// Each question is a process of its own: a few at a time.
	places := make(chan struct{}, 6)
	for i := range faults {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			f := &faults[i]
			if err := c.inject(f, csr); err != nil {
				results[i].first = "not injected: " + err.Error()
				return
			}
			r := &results[i]
			r.first, r.named, r.took = c.why(f)
			r.plain = c.plain(f)
		})
	}
	wg.Wait()
	named, plain := 0, 0
	for i, f := range faults {
		r := results[i]
		if r.named {
			named++
		} else {
			t.Errorf("%s: berth why %s does not name %q:\n  %s", f.name, f.ask, f.want, r.first)
		}
		if r.plain {
			plain++
		}
		t.Logf("%-26s why %-5v events+conditions %-5v %4d ms  %s", f.name, r.named, r.plain, r.took.Milliseconds(), r.first)
	}
	t.Logf("berth why: %d of %d; events and conditions alone: %d of %d", named, len(faults), plain, len(faults))
	c.latency(t, faults)
	c.views(t)
	withoutAPI(t, c, results, faults)
}

// views looks at the same cluster through `berth events`, `top` and `status`.
func (c *cluster) views(t *testing.T) {
	for _, v := range []struct {
		args string
		want []string
	}{
		{"events -n why-crash-code --for pod/p --last 100", []string{"pod why-crash-code/p: placed on", "(scheduler)", "BackOff"}},
		{"events -n why-crash-code --for pod/p -o json", []string{`"source":"event"`, `"because":`}},
		{"top nodes", []string{"NODE", c.node}},
		{"top pods -n why-crash-code -o json", []string{`"pods":`}},
		{"status", []string{"ready"}},
	} {
		out, err := c.berth(append(strings.Fields(v.args), "--data-dir", c.dir)...)
		for _, w := range v.want {
			if err != nil || !strings.Contains(out, w) {
				t.Errorf("berth %s: %v: %q is missing in:\n%s", v.args, err, w, out)
				break
			}
		}
	}
	c.follow(t)
}

// follow waits for the next restart of a container that crashes.
func (c *cluster) follow(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "berth"), "events", "--follow", "--last", "0", "-n", "why-followed", "--data-dir",
		c.dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f := fault{name: "followed", yaml: pod("p", "{name: c, image: IMG, command: [sh, -c, exit 9]}")}
	if err := c.inject(&f, ""); err != nil {
		t.Errorf("not injected: %v", err)
	}
	seen := map[string]bool{"(scheduler)": false, "Started": false, "restarted": false}
	lines, left := bufio.NewScanner(out), len(seen)
	for left > 0 && lines.Scan() {
		for w, had := range seen {
			if !had && strings.Contains(lines.Text(), w) {
				seen[w] = true
				left--
			}
		}
	}
	if left > 0 {
		t.Errorf("berth events --follow ended without a decision, an event or a restart: %v", seen)
	}
	cancel()
	cmd.Wait() //nolint:errcheck // it was interrupted
}

// latency prints how long an answer takes beside the start of the process: the
// requests to the API and the explanation. It asserts nothing; the host is
// shared.
func (c *cluster) latency(t *testing.T, faults []fault) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	var took []time.Duration
	for i := range faults {
		words := strings.Fields(c.fill(&faults[i], faults[i].ask))
		kind, namespaced, _ := answers.KindOf(words[0])
		ref := journal.Ref{Kind: kind, Name: words[1]}
		if namespaced {
			ref.Namespace = "why-" + faults[i].name
		}
		began := time.Now()
		if _, err := ask.Why(context.Background(), ask.Config{Client: cfg, Now: began}, ref); err != nil {
			t.Error(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("an answer took %s in the median, %s at most", took[len(took)/2].Round(time.Millisecond/10),
		took[len(took)-1].Round(time.Millisecond/10))
}

// withoutAPI stops the cluster: answers then come from the journal on disk.
func withoutAPI(t *testing.T, c *cluster, results []result, faults []fault) {
	if out, err := c.berth("down", "--data-dir", c.dir); err != nil {
		t.Fatalf("berth down: %v\n%s", err, out)
	}
	asked, told := 0, 0
	for i, f := range faults {
		if !strings.HasPrefix(f.ask, "pod ") || !results[i].named || f.name == "never-existed" {
			continue
		}
		words := strings.Fields(c.fill(&f, f.ask))
		out, err := c.berth("why", words[0], words[1], "-n", "why-"+f.name, "--data-dir", c.dir, "-o", "json")
		var a answers.Answer
		if err != nil || json.Unmarshal([]byte(out), &a) != nil {
			t.Errorf("%s without the API server: %v\n%s", f.name, err, out)
			continue
		}
		asked++
		if strings.Contains(a.Cause, "last decision") {
			told++
		}
		t.Logf("without the API server: %-26s %s", f.name, a.Cause)
	}
	t.Logf("without the API server: the journal tells of %d of %d pods", told, asked)
	if told == 0 {
		t.Error("without the API server nothing is told of any pod")
	}
}
