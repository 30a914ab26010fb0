package node

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

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestImages pulls from a real registry (test/tools/registry) through the
// bundled runtime: with and without credentials, slow, and breaking off.
func TestImages(t *testing.T) {
	kit.OnlyInAll(t, "50 s; TestEveryImageIsVerified runs")
	c := kit.NewCluster(t)
	r := startRegistry(t, c)
	c.Up()
	c.Kubectl("create", "secret", "docker-registry", "right", "--docker-server="+r, "--docker-username=user", "--docker-password=password")
	c.Kubectl("create", "secret", "docker-registry", "wrong", "--docker-server="+r, "--docker-username=user", "--docker-password=guess")
	for _, step := range []struct {
		name string
		f    func(*testing.T, *kit.Cluster, string)
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
			c.T = t
			defer func() { c.T = t }()
			step.f(t, c, r)
		})
	}
	c.T = t
}

// startRegistry serves the toolbox image and returns the registry's address.
func startRegistry(t *testing.T, c *kit.Cluster) string {
	t.Helper()
	tool := filepath.Join(kit.Tools{}.Build(t, "./registry"), "registry")
	cmd := exec.Command(tool, "--archive="+filepath.Join(c.Bin, "images", "toolbox.tar"), "--rate=200000")
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
func imagePod(c *kit.Cluster, name, image, policy, extra string) {
	c.T.Helper()
	c.Apply(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: %s}}, spec: {terminationGracePeriodSeconds: 0, %s
containers: [{name: c, image: %q, imagePullPolicy: %s, command: [sleep, "10000"]}]}}`, name, name, extra, image, policy))
}

// waiting waits until the pod's container waits for one of the reasons.
func waiting(c *kit.Cluster, pod string, reasons ...string) (message string) {
	c.T.Helper()
	c.Eventually(pod+" waits with "+strings.Join(reasons, " or "), func() (bool, string) {
		p, err := c.Client.CoreV1().Pods("default").Get(context.Background(), pod, metav1.GetOptions{})
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
		return false, kit.Describe(p)
	})
	return message
}

// testFairPulls has twice as many pulls of a slow registry as there are slots,
// and then one of another registry: it gets the first slot that comes free.
func testFairPulls(t *testing.T, c *kit.Cluster, r string) {
	slow := startRegistry(t, c)
	for i := range 8 {
		imagePod(c, fmt.Sprint("slow-", i), fmt.Sprint(slow, "/slow/toolbox:", i+1), "IfNotPresent", "")
	}
	c.WaitPodEvent("slow-0", "Pulling", fmt.Sprintf("Pulling image %q", slow+"/slow/toolbox:1"))
	imagePod(c, "open", r+"/open/toolbox:1", "IfNotPresent", "")
	c.WaitReady("default", "app=open", 1)
	waiting := 0
	for _, p := range c.Pods("default", "") {
		if strings.HasPrefix(p.Name, "slow-") && !kit.PodReady(&p) {
			waiting++
		}
	}
	if waiting < 3 {
		t.Errorf("the other registry's image came when only %d of 8 slow ones were left", waiting)
	}
	c.WaitPodEvent("open", "Pulled", fmt.Sprintf("Successfully pulled image %q in ", r+"/open/toolbox:1"))
	for i := range 8 {
		c.Kubectl("delete", "pod", fmt.Sprint("slow-", i), "--wait=false")
	}
}

func testDigest(t *testing.T, c *kit.Cluster, r string) {
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
	imagePod(c, "digest", r+"/open/toolbox@"+digest, "IfNotPresent", "")
	pod := c.WaitReady("default", "app=digest", 1)[0]
	if id := pod.Status.ContainerStatuses[0].ImageID; !strings.HasSuffix(id, "@"+digest) {
		t.Errorf("imageID %q, want the digest %s", id, digest)
	}
}

func testImageRefusals(t *testing.T, c *kit.Cluster, r string) {
	imagePod(c, "never", r+"/open/absent:1", "Never", "")
	if got := waiting(c, "never", "ErrImageNeverPull"); got != fmt.Sprintf("Container image %q is not present with pull policy of Never",
		r+"/open/absent:1") {
		t.Errorf("message %q", got)
	}
	c.WaitPodEvent("never", "ErrImageNeverPull", "is not present with pull policy of Never")
	imagePod(c, "name", "No/Such:Name:1", "IfNotPresent", "")
	waiting(c, "name", "InvalidImageName")
	c.WaitPodEvent("name", "InspectFailed", `Failed to apply default image tag "No/Such:Name:1"`)
	imagePod(c, "absent", r+"/open/absent:1", "IfNotPresent", "")
	waiting(c, "absent", "ErrImagePull", "ImagePullBackOff")
	c.WaitPodEvent("absent", "Failed", fmt.Sprintf("Failed to pull image %q", r+"/open/absent:1"))
	c.WaitPodEvent("absent", "Failed", "Error: ErrImagePull")
	if got, want := waiting(c, "absent", "ImagePullBackOff"), fmt.Sprintf("Back-off pulling image %q: ErrImagePull: ",
		r+"/open/absent:1"); !strings.HasPrefix(got, want) {
		t.Errorf("message %q, want %q and the error", got, want)
	}
	c.WaitPodEvent("absent", "BackOff", fmt.Sprintf("Back-off pulling image %q", r+"/open/absent:1"))
	c.WaitPodEvent("absent", "Failed", "Error: ImagePullBackOff")
	c.Kubectl("delete", "pod", "never", "name", "absent", "--wait")
}

func testCredentials(t *testing.T, c *kit.Cluster, r string) {
	image := r + "/private/toolbox:1"
	imagePod(c, "nobody", image, "IfNotPresent", "")
	waiting(c, "nobody", "ErrImagePull", "ImagePullBackOff")
	imagePod(c, "wrong", image, "IfNotPresent", "imagePullSecrets: [{name: wrong}],")
	waiting(c, "wrong", "ErrImagePull", "ImagePullBackOff")
	imagePod(c, "missing", image, "IfNotPresent", "imagePullSecrets: [{name: gone}],")
	c.WaitPodEvent("missing", "FailedToRetrieveImagePullSecret",
		"Unable to retrieve some image pull secrets (gone); attempting to pull the image may not succeed.")
	imagePod(c, "right", image, "IfNotPresent", "imagePullSecrets: [{name: wrong}, {name: right}],")
	c.WaitReady("default", "app=right", 1)
	// A service account's secrets count as the pod's.
	c.Kubectl("create", "serviceaccount", "puller")
	c.Kubectl("patch", "serviceaccount", "puller", "-p", `{"imagePullSecrets":[{"name":"right"}]}`)
	imagePod(c, "account", image, "Always", "serviceAccountName: puller,")
	c.WaitReady("default", "app=account", 1)
	c.Kubectl("delete", "pod", "nobody", "wrong", "missing", "account", "--wait")
	for _, file := range []string{"agent.log", "berth.log"} {
		text, err := os.ReadFile(filepath.Join(c.Dir, "logs", file))
		if err == nil && strings.Contains(string(text), base64.StdEncoding.EncodeToString([]byte("user:password"))) {
			t.Errorf("%s holds a credential", file)
		}
	}
}

// testBorrowedImage uses an image that another pod's secret brought here.
func testBorrowedImage(t *testing.T, c *kit.Cluster, r string) {
	image := r + "/private/toolbox:1"
	imagePod(c, "thief", image, "IfNotPresent", "")
	waiting(c, "thief", "ErrImagePull", "ImagePullBackOff")
	imagePod(c, "quiet-thief", image, "Never", "")
	waiting(c, "quiet-thief", "ErrImageNeverPull")
	imagePod(c, "owner", image, "Never", "imagePullSecrets: [{name: right}],")
	c.WaitReady("default", "app=owner", 1)
	c.WaitPodEvent("owner", "Pulled", "already present on machine and can be accessed by the pod")
	imagePod(c, "preloaded", "berth.dev/toolbox:1", "Never", "")
	c.WaitReady("default", "app=preloaded", 1)
	c.Kubectl("delete", "pod", "thief", "quiet-thief", "owner", "preloaded", "right", "--wait")
}

func testBrokenLayer(t *testing.T, c *kit.Cluster, r string) {
	imagePod(c, "broken", r+"/broken/toolbox:1", "IfNotPresent", "")
	waiting(c, "broken", "ErrImagePull", "ImagePullBackOff")
	imagePod(c, "flaky", r+"/flaky/toolbox:1", "IfNotPresent", "")
	c.WaitReady("default", "app=flaky", 1)
	c.Kubectl("delete", "pod", "broken", "flaky", "--wait")
}

func testImageVolume(t *testing.T, c *kit.Cluster, r string) {
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
		c.Apply(strings.NewReplacer("NAME", name, "REF", ref).Replace(manifest))
	}
	pod("volume", r+"/open/toolbox:1")
	c.WaitReady("default", "app=volume", 1)
	if got := c.Kubectl("exec", "volume", "--", "ls", "/image"); !strings.Contains(got, "toolbox") {
		t.Errorf("the image volume holds %q", got)
	}
	if out, err := c.TryKubectl("", "exec", "volume", "--", "touch", "/image/x"); err == nil {
		t.Errorf("the image volume is writable: %s", out)
	}
	pod("no-volume", r+"/private/toolbox:1")
	waiting(c, "no-volume", "ErrImagePull", "ImagePullBackOff")
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
	c := kit.NewCluster(t, "--agent-config="+config)
	r := startRegistry(t, c)
	c.Up()
	c.Kubectl("create", "secret", "docker-registry", "right", "--docker-server="+r, "--docker-username=user", "--docker-password=password")
	image := r + "/private/toolbox:1"
	imagePod(c, "came-along", "berth.dev/toolbox:1", "Never", "")
	imagePod(c, "entitled", image, "IfNotPresent", "imagePullSecrets: [{name: right}],")
	waiting(c, "came-along", "ErrImageNeverPull")
	c.WaitReady("default", "app=entitled", 1)
	imagePod(c, "again", image, "Never", "imagePullSecrets: [{name: right}],")
	c.WaitReady("default", "app=again", 1)
	imagePod(c, "stranger", image, "Never", "")
	waiting(c, "stranger", "ErrImageNeverPull")
}
