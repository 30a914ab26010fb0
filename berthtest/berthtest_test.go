package berthtest_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/berthtest"
	"github.com/berth-dev/berth/internal/cluster/named"
)

// needsBerth leaves out what only a built berth can show. `make live` has one.
func needsBerth(t *testing.T) {
	if os.Getenv("BERTH_BIN") == "" {
		t.Skip("BERTH_BIN does not name a built berth: `make live` runs this test")
	}
}

func TestAPIOnly(t *testing.T) {
	needsBerth(t)
	var name, dir string
	t.Run("runs", func(t *testing.T) {
		c := berthtest.Start(t, berthtest.APIOnly())
		name, dir = c.Name, c.Dir
		client, err := kubernetes.NewForConfig(c.Config)
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "v"}}
		if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		bad := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "A_"}}
		if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("an invalid name: %v", err)
		}
		if _, err := os.Stat(c.Kubeconfig); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
	if p, err := named.Default().Find(name); err == nil {
		t.Errorf("cluster %s is left: %+v", name, p)
	}
}

// TestControlPlane has controllers: the account of a new namespace appears.
func TestControlPlane(t *testing.T) {
	needsBerth(t)
	c := berthtest.Start(t, berthtest.ControlPlane())
	client, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := client.CoreV1().ServiceAccounts("n").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=default"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, ok := <-w.ResultChan(); !ok {
		t.Error("the watch ended without the account")
	}
}

func TestAFailingStartSaysWhy(t *testing.T) {
	needsBerth(t)
	_, _, err := berthtest.StartMain(berthtest.APIOnly(), berthtest.Flags("--cluster-cidr=nonsense"))
	if err == nil || !strings.Contains(err.Error(), "--cluster-cidr") {
		t.Errorf("got %v, want the flag that is wrong", err)
	}
	left, err := named.Default().List()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range left {
		if strings.HasPrefix(p.Name, "t-") {
			t.Errorf("%s is left of a start that failed", p.DataDir)
		}
	}
}

func TestAMissingProgramSaysWhereItIsLookedFor(t *testing.T) {
	_, _, err := berthtest.StartMain(berthtest.Program(filepath.Join(t.TempDir(), "berth")))
	if err == nil || !strings.Contains(err.Error(), "BERTH_BIN") {
		t.Error(err)
	}
}

// TestKilledTestLeavesNothing: a process that is killed cannot clean up.
func TestKilledTestLeavesNothing(t *testing.T) {
	needsBerth(t)
	if os.Getenv("BERTHTEST_HOLD") != "" {
		c := berthtest.Start(t, berthtest.APIOnly())
		os.Stdout.WriteString(c.Dir + "\n")
		select {} // until it is killed
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", "^TestKilledTestLeavesNothing$")
	cmd.Env = append(os.Environ(), "BERTHTEST_HOLD=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	dir := make([]byte, 256)
	n, err := out.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	held := strings.TrimSpace(string(dir[:n]))
	if !filepath.IsAbs(held) {
		t.Fatalf("the test that is to be killed said %q", held)
	}
	lock, err := os.ReadFile(filepath.Join(held, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() //nolint:errcheck // it was killed
	awaitEnd(t, strings.TrimSpace(string(lock)))
	if _, err := os.Stat(held); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", held, err)
	}
}
