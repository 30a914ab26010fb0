package ui

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/test/e2e/kit"
)

// fetch gets an address and returns status and body.
func fetch(t *testing.T, client *http.Client, address string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	kit.Must(t, err)
	resp, err := client.Do(req)
	kit.Must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	kit.Must(t, err)
	return resp.StatusCode, string(body)
}

// TestStatusPage asks a real cluster, without a browser: the page stands behind
// the API server's authentication, shows what RBAC allows, and comes through
// kubectl proxy and berth ui.
func TestStatusPage(t *testing.T) {
	c := kit.NewCluster(t)
	c.Up()
	node := strings.TrimPrefix(strings.TrimSpace(c.Kubectl("get", "nodes", "-o", "name")), "node/")
	rc, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.Dir, "admin.kubeconfig"))
	kit.Must(t, err)
	c.Kubectl("create", "deployment", "told", "--image=berth.dev/toolbox:1", "--replicas=0") // the cost is that of an idle cluster
	c.Kubectl("create", "serviceaccount", "few")
	token := strings.TrimSpace(c.Kubectl("create", "token", "few"))

	t.Run("rights", func(t *testing.T) {
		admin, err := rest.HTTPClientFor(rc)
		kit.Must(t, err)
		if code, body := fetch(t, admin, rc.Host+"/ui/"); code != http.StatusOK || !strings.Contains(body, node) ||
			!strings.Contains(body, "next certificate end") {
			t.Errorf("the administrator gets %d:\n%s", code, body)
		}
		if code, body := fetch(t, admin, rc.Host+"/"); code != http.StatusOK || strings.Contains(body, "/ui") {
			t.Errorf("the list of paths has changed: %d %s", code, body)
		}
		few := rest.AnonymousClientConfig(rc)
		nobody, err := rest.HTTPClientFor(few)
		kit.Must(t, err)
		if code, body := fetch(t, nobody, rc.Host+"/ui/"); code != http.StatusUnauthorized && code != http.StatusForbidden ||
			strings.Contains(body, node) {
			t.Errorf("nobody gets %d: %s", code, body)
		}
		few.BearerToken = token
		account, err := rest.HTTPClientFor(few)
		kit.Must(t, err)
		if code, body := fetch(t, account, rc.Host+"/ui/"); code != http.StatusOK || strings.Contains(body, node) {
			t.Errorf("an account without rights gets %d: %s", code, body)
		}
		c.Kubectl("create", "rolebinding", "few", "--clusterrole=view", "--serviceaccount=default:few")
		if _, body := fetch(t, account, rc.Host+"/ui/workloads"); !strings.Contains(body, "told") || strings.Contains(body, "kube-system") {
			t.Errorf("an account that may view one namespace sees %s", body)
		}
	})
	t.Run("kubectl proxy", func(t *testing.T) { throughKubectl(t, c, node) })
	t.Run("berth ui", func(t *testing.T) { throughBerth(t, c, node) })
	t.Run("cost", func(t *testing.T) { cost(t, c, rc) })
}

// throughKubectl reads the page through kubectl proxy, under a prefix.
func throughKubectl(t *testing.T, c *kit.Cluster, node string) {
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "berth"), "kubectl", "--kubeconfig", filepath.Join(c.Dir, "admin.kubeconfig"),
		"proxy", "--port=0", "--api-prefix=/k8s/")
	out, err := cmd.StdoutPipe()
	kit.Must(t, err)
	kit.Must(t, cmd.Start())
	defer func() {
		stop()
		_ = cmd.Wait() // it was ended
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	kit.Must(t, err)
	at := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	code, body := fetch(t, http.DefaultClient, "http://"+at+"/k8s/ui/nodes/"+node)
	if code != http.StatusOK || !strings.Contains(body, "Conditions") {
		t.Fatalf("through kubectl proxy: %d %s", code, body)
	}
	// Its addresses hold below the prefix.
	style := regexp.MustCompile(`href="([^"]*ui\.css[^"]*)"`).FindStringSubmatch(body)
	base, err := url.Parse("http://" + at + "/k8s/ui/nodes/" + node)
	kit.Must(t, err)
	ref, err := base.Parse(style[1])
	kit.Must(t, err)
	if code, _ := fetch(t, http.DefaultClient, ref.String()); code != http.StatusOK {
		t.Errorf("%s: %d", ref, code)
	}
}

// throughBerth logs in at berth ui as a browser does.
func throughBerth(t *testing.T, c *kit.Cluster, node string) {
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "berth"), "ui", "--data-dir", c.Dir, "--print")
	cmd.Env = append(os.Environ(), "KUBECONFIG=")
	out, err := cmd.StdoutPipe()
	kit.Must(t, err)
	kit.Must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	kit.Must(t, err)
	at, err := url.Parse(regexp.MustCompile(`http://\S+`).FindString(line))
	kit.Must(t, err)
	jar, err := cookiejar.New(nil)
	kit.Must(t, err)
	browser := &http.Client{Jar: jar}
	page := "http://" + at.Host + "/ui/"
	if code, body := fetch(t, browser, page); code != http.StatusUnauthorized || strings.Contains(body, node) {
		t.Errorf("without the token: %d %s", code, body)
	}
	token, err := url.ParseQuery(at.Fragment)
	kit.Must(t, err)
	resp, err := browser.PostForm("http://"+at.Host+"/login", token)
	kit.Must(t, err)
	body, err := io.ReadAll(resp.Body)
	kit.Must(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), node) {
		t.Errorf("after the login: %s %s", resp.Status, body)
	}
	kit.Must(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("an interrupted berth ui ends with %v", err)
	}
}

// costTime is how long the cost of an open page is measured.
const costTime = 30 * time.Second

// cost prints what the server spends with and without an open page.
func cost(t *testing.T, c *kit.Cluster, rc *rest.Config) {
	s, err := cluster.Ask(t.Context(), c.Dir)
	kit.Must(t, err)
	without, _ := spent(t, s.PID, nil)
	before := memory(t, s.PID)
	client, err := rest.HTTPClientFor(rc)
	kit.Must(t, err)
	client.Timeout = 0
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rc.Host+"/ui/live?view=", nil)
	kit.Must(t, err)
	resp, err := client.Do(req)
	kit.Must(t, err)
	defer resp.Body.Close()
	got := make(chan string, 1000)
	go func() {
		in := bufio.NewScanner(resp.Body)
		in.Buffer(nil, 4<<20)
		for in.Scan() {
			if e, ok := strings.CutPrefix(in.Text(), "event: "); ok {
				got <- e
			}
		}
	}()
	if first := <-got; first != "hello" {
		t.Errorf("the stream begins with %q", first)
	}
	with, events := spent(t, s.PID, got)
	t.Logf("idle cluster: %.2f %% of a core without a page, %.2f %% with one open; anonymous memory %d KiB more; events %v",
		without, with, memory(t, s.PID)-before, events)
}

// spent is the share of a core that a process used for costTime, in percent.
func spent(t *testing.T, pid int, got <-chan string) (percent float64, events map[string]int) {
	t.Helper()
	events = map[string]int{}
	began, from := time.Now(), ticks(t, pid)
	end := time.After(costTime)
	for {
		select {
		case e := <-got:
			events[e]++
		case <-end:
			return float64(ticks(t, pid)-from) / time.Since(began).Seconds(), events // 100 ticks are a second
		}
	}
}

func ticks(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	kit.Must(t, err)
	fields := strings.Fields(string(text)[strings.LastIndexByte(string(text), ')')+1:])
	user, err := strconv.Atoi(fields[11])
	kit.Must(t, err)
	system, err := strconv.Atoi(fields[12])
	kit.Must(t, err)
	return user + system
}

// memory is the anonymous memory of a process in KiB.
func memory(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	kit.Must(t, err)
	kib := regexp.MustCompile(`RssAnon:\s+(\d+)`).FindStringSubmatch(string(text))
	n, err := strconv.Atoi(kib[1])
	kit.Must(t, err)
	return n
}
