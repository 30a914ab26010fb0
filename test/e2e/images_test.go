package e2e

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestImages pulls from a real registry (test/tools/registry) through the
// bundled runtime: with and without credentials, slow, and breaking off.
func TestImages(t *testing.T) {
	c := newCluster(t)
	r := startRegistry(t, c)
	c.up()
	c.kubectl("create", "secret", "docker-registry", "right", "--docker-server="+r, "--docker-username=user", "--docker-password=password")
	c.kubectl("create", "secret", "docker-registry", "wrong", "--docker-server="+r, "--docker-username=user", "--docker-password=guess")
	for _, step := range []struct {
		name string
		f    func(*testing.T, *cluster, string)
	}{
		{"a slow registry holds up nobody else", testFairPulls},
		{"digest names", testDigest},
		{"policies and names that cannot work", testImageRefusals},
		{"credentials", testCredentials},
		{"an image of somebody else's secret", testBorrowedImage},
		{"a layer that breaks off", testBrokenLayer},
		{"image volumes", testImageVolume},
	} {
		t.Run(step.name, func(t *testing.T) {
			c.t = t
			defer func() { c.t = t }()
			step.f(t, c, r)
		})
	}
	c.t = t
}

// startRegistry serves the toolbox image and returns the registry's address.
func startRegistry(t *testing.T, c *cluster) string {
	t.Helper()
	tool := filepath.Join(t.TempDir(), "registry")
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-o", tool, "./registry")
	build.Dir = filepath.Join("..", "tools")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the registry: %v\n%s", err, out)
	}
	cmd := exec.Command(tool, "--archive="+filepath.Join(c.bin, "images", "toolbox.tar"), "--rate=200000")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the registry did not start: %v", err)
	}
	return strings.TrimSpace(line)
}

// imagePod starts a pod; extra goes into its spec.
func (c *cluster) imagePod(name, image, policy, extra string) {
	c.t.Helper()
	c.apply(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: %s}}, spec: {terminationGracePeriodSeconds: 0, %s
containers: [{name: c, image: %q, imagePullPolicy: %s, command: [sleep, "10000"]}]}}`, name, name, extra, image, policy))
}

// waiting waits until the pod's container waits for one of the reasons.
func (c *cluster) waiting(pod string, reasons ...string) (message string) {
	c.t.Helper()
	c.eventually(pod+" waits with "+strings.Join(reasons, " or "), func() (bool, string) {
		p, err := c.client.CoreV1().Pods("default").Get(context.Background(), pod, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, s := range p.Status.ContainerStatuses {
			for _, want := range reasons {
				if s.State.Waiting != nil && s.State.Waiting.Reason == want {
					message = s.State.Waiting.Message
					return true, ""
				}
			}
		}
		return false, describe(p)
	})
	return message
}

// told waits for an event of a pod.
func (c *cluster) told(pod, reason, text string) {
	c.t.Helper()
	c.eventually("event "+reason+" "+text, func() (bool, string) {
		list, err := c.client.CoreV1().Events("default").List(context.Background(),
			metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return false, err.Error()
		}
		seen := ""
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return true, ""
			}
			seen += e.Reason + " " + e.Message + "; "
		}
		return false, seen
	})
}

// testFairPulls has twice as many pulls of a slow registry as there are slots,
// and then one of another registry: it gets the first slot that comes free.
func testFairPulls(t *testing.T, c *cluster, r string) {
	slow := startRegistry(t, c)
	for i := range 8 {
		c.imagePod(fmt.Sprint("slow-", i), fmt.Sprint(slow, "/slow/toolbox:", i+1), "IfNotPresent", "")
	}
	c.told("slow-0", "Pulling", fmt.Sprintf("Pulling image %q", slow+"/slow/toolbox:1"))
	c.imagePod("open", r+"/open/toolbox:1", "IfNotPresent", "")
	c.waitReady("default", "app=open", 1)
	waiting := 0
	for _, p := range c.pods("default", "") {
		if strings.HasPrefix(p.Name, "slow-") && !podReady(&p) {
			waiting++
		}
	}
	if waiting < 3 {
		t.Errorf("the other registry's image came when only %d of 8 slow ones were left", waiting)
	}
	c.told("open", "Pulled", fmt.Sprintf("Successfully pulled image %q in ", r+"/open/toolbox:1"))
	for i := range 8 {
		c.kubectl("delete", "pod", fmt.Sprint("slow-", i), "--wait=false")
	}
}

func testDigest(t *testing.T, c *cluster, r string) {
	answer, err := http.Get("http://" + r + "/v2/open/toolbox/manifests/1")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	manifest, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(manifest))
	c.imagePod("digest", r+"/open/toolbox@"+digest, "IfNotPresent", "")
	pod := c.waitReady("default", "app=digest", 1)[0]
	if id := pod.Status.ContainerStatuses[0].ImageID; !strings.HasSuffix(id, "@"+digest) {
		t.Errorf("imageID %q, want the digest %s", id, digest)
	}
}

func testImageRefusals(t *testing.T, c *cluster, r string) {
	c.imagePod("never", r+"/open/absent:1", "Never", "")
	if got := c.waiting("never", "ErrImageNeverPull"); got != fmt.Sprintf("Container image %q is not present with pull policy of Never",
		r+"/open/absent:1") {
		t.Errorf("message %q", got)
	}
	c.told("never", "ErrImageNeverPull", "is not present with pull policy of Never")
	c.imagePod("name", "No/Such:Name:1", "IfNotPresent", "")
	c.waiting("name", "InvalidImageName")
	c.told("name", "InspectFailed", `Failed to apply default image tag "No/Such:Name:1"`)
	c.imagePod("absent", r+"/open/absent:1", "IfNotPresent", "")
	c.waiting("absent", "ErrImagePull", "ImagePullBackOff")
	c.told("absent", "Failed", fmt.Sprintf("Failed to pull image %q", r+"/open/absent:1"))
	c.told("absent", "Failed", "Error: ErrImagePull")
	if got, want := c.waiting("absent", "ImagePullBackOff"), fmt.Sprintf("Back-off pulling image %q: ErrImagePull: ",
		r+"/open/absent:1"); !strings.HasPrefix(got, want) {
		t.Errorf("message %q, want %q and the error", got, want)
	}
	c.told("absent", "BackOff", fmt.Sprintf("Back-off pulling image %q", r+"/open/absent:1"))
	c.told("absent", "Failed", "Error: ImagePullBackOff")
	c.kubectl("delete", "pod", "never", "name", "absent", "--wait")
}

func testCredentials(t *testing.T, c *cluster, r string) {
	image := r + "/private/toolbox:1"
	c.imagePod("nobody", image, "IfNotPresent", "")
	c.waiting("nobody", "ErrImagePull", "ImagePullBackOff")
	c.imagePod("wrong", image, "IfNotPresent", "imagePullSecrets: [{name: wrong}],")
	c.waiting("wrong", "ErrImagePull", "ImagePullBackOff")
	c.imagePod("missing", image, "IfNotPresent", "imagePullSecrets: [{name: gone}],")
	c.told("missing", "FailedToRetrieveImagePullSecret",
		"Unable to retrieve some image pull secrets (gone); attempting to pull the image may not succeed.")
	c.imagePod("right", image, "IfNotPresent", "imagePullSecrets: [{name: wrong}, {name: right}],")
	c.waitReady("default", "app=right", 1)
	// A service account's secrets count as the pod's.
	c.kubectl("create", "serviceaccount", "puller")
	c.kubectl("patch", "serviceaccount", "puller", "-p", `{"imagePullSecrets":[{"name":"right"}]}`)
	c.imagePod("account", image, "Always", "serviceAccountName: puller,")
	c.waitReady("default", "app=account", 1)
	c.kubectl("delete", "pod", "nobody", "wrong", "missing", "account", "--wait")
	for _, file := range []string{"agent.log", "berth.log"} {
		text, err := os.ReadFile(filepath.Join(c.dir, "logs", file))
		if err == nil && strings.Contains(string(text), base64.StdEncoding.EncodeToString([]byte("user:password"))) {
			t.Errorf("%s holds a credential", file)
		}
	}
}

// testBorrowedImage uses an image that another pod's secret brought here.
func testBorrowedImage(t *testing.T, c *cluster, r string) {
	image := r + "/private/toolbox:1"
	c.imagePod("thief", image, "IfNotPresent", "")
	c.waiting("thief", "ErrImagePull", "ImagePullBackOff")
	c.imagePod("quiet-thief", image, "Never", "")
	c.waiting("quiet-thief", "ErrImageNeverPull")
	c.imagePod("owner", image, "Never", "imagePullSecrets: [{name: right}],")
	c.waitReady("default", "app=owner", 1)
	c.told("owner", "Pulled", "already present on machine and can be accessed by the pod")
	c.imagePod("preloaded", "berth.dev/toolbox:1", "Never", "")
	c.waitReady("default", "app=preloaded", 1)
	c.kubectl("delete", "pod", "thief", "quiet-thief", "owner", "preloaded", "right", "--wait")
}

func testBrokenLayer(t *testing.T, c *cluster, r string) {
	c.imagePod("broken", r+"/broken/toolbox:1", "IfNotPresent", "")
	c.waiting("broken", "ErrImagePull", "ImagePullBackOff")
	c.imagePod("flaky", r+"/flaky/toolbox:1", "IfNotPresent", "")
	c.waitReady("default", "app=flaky", 1)
	c.kubectl("delete", "pod", "broken", "flaky", "--wait")
}

func testImageVolume(t *testing.T, c *cluster, r string) {
	const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: NAME}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: berth.dev/toolbox:1
    command: [sleep, "10000"]
    volumeMounts: [{name: image, mountPath: /image, subPath: bin}]
  volumes:
  - {name: image, image: {reference: "REF", pullPolicy: IfNotPresent}}
`
	pod := func(name, ref string) {
		c.apply(strings.NewReplacer("NAME", name, "REF", ref).Replace(manifest))
	}
	pod("volume", r+"/open/toolbox:1")
	c.waitReady("default", "app=volume", 1)
	if got := c.kubectl("exec", "volume", "--", "ls", "/image"); !strings.Contains(got, "toolbox") {
		t.Errorf("the image volume holds %q", got)
	}
	if out, err := c.tryKubectl("", "exec", "volume", "--", "touch", "/image/x"); err == nil {
		t.Errorf("the image volume is writable: %s", out)
	}
	pod("no-volume", r+"/private/toolbox:1")
	c.waiting("no-volume", "ErrImagePull", "ImagePullBackOff")
}

// TestEveryImageIsVerified: with AlwaysVerify a pod needs to show what it may
// pull with for every image, also one that came with the node.
func TestEveryImageIsVerified(t *testing.T) {
	config := filepath.Join(t.TempDir(), "agent.yaml")
	err := os.WriteFile(config,
		[]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nimagePullCredentialsVerificationPolicy: "+
			"AlwaysVerify\n"), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, "--agent-config="+config)
	r := startRegistry(t, c)
	c.up()
	c.kubectl("create", "secret", "docker-registry", "right", "--docker-server="+r, "--docker-username=user", "--docker-password=password")
	image := r + "/private/toolbox:1"
	c.imagePod("came-along", "berth.dev/toolbox:1", "Never", "")
	c.imagePod("entitled", image, "IfNotPresent", "imagePullSecrets: [{name: right}],")
	c.waiting("came-along", "ErrImageNeverPull")
	c.waitReady("default", "app=entitled", 1)
	c.imagePod("again", image, "Never", "imagePullSecrets: [{name: right}],")
	c.waitReady("default", "app=again", 1)
	c.imagePod("stranger", image, "Never", "")
	c.waiting("stranger", "ErrImageNeverPull")
}
