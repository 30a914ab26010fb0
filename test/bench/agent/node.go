package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/test/rig"
)

// noteUnknown does what the cluster does to a node that is not heard of.
func (b *bench) noteUnknown(ctx context.Context) error {
	nodes := b.Client.CoreV1().Nodes()
	n, err := nodes.Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == v1.NodeReady {
			c.Status, c.Reason = v1.ConditionUnknown, "NodeStatusUnknown"
		}
	}
	_, err = nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{})
	return err
}

// ready measures how soon a node that the cluster knows is Ready again after
// its agent starts.
func (b *bench) ready(ctx context.Context) error {
	var took []time.Duration
	for range 5 {
		b.agent.Stop()
		if err := b.noteUnknown(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := b.agent.Start(); err != nil {
			return err
		}
		if err := b.WaitNode(ctx, nodeName); err != nil {
			return err
		}
		took = append(took, time.Since(began))
		if err := b.awaitHealth(ctx); err != nil {
			return err
		}
	}
	b.note("ready", "agent started -> node Ready, registered before: median, worst of 5", "1 s",
		fmt.Sprintf("%s, %s", ms(quantile(took, 0.5)), ms(quantile(took, 1))), met(quantile(took, 1) <= time.Second))
	return nil
}

// awaitHealth returns when the agent serves its API.
func (b *bench) awaitHealth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		body, err := b.ask(ctx, "/healthz")
		if err == nil {
			return body.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the agent to be healthy: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ask asks the agent's API.
func (b *bench) ask(ctx context.Context, path string) (io.ReadCloser, error) {
	if b.http == nil {
		transport, err := rest.TransportFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true, CertData: b.Admin.CertData,
			KeyData: b.Admin.KeyData, CertFile: b.Admin.CertFile, KeyFile: b.Admin.KeyFile}})
		if err != nil {
			return nil, err
		}
		b.http = &http.Client{Transport: transport}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", b.agent.Port, path), nil)
	if err != nil {
		return nil, err
	}
	resp, err := b.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("asking the agent for %s: %s", path, resp.Status), resp.Body.Close())
	}
	return resp.Body, nil
}

// hang stops the runtime in its tracks and looks at the heartbeat.
func (b *bench) hang(ctx context.Context) error {
	leases := b.Client.CoordinationV1().Leases("kube-node-lease")
	lease, err := leases.Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	// A quarter of the lease, and the time of a request.
	renew := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second / 4
	w, err := leases.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + nodeName, ResourceVersion: lease.ResourceVersion})
	if err != nil {
		return err
	}
	defer w.Stop()
	pid, err := b.runtimePID()
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stopping the runtime: %w", err)
	}
	defer unix.Kill(pid, syscall.SIGCONT) //nolint:errcheck // it has ended then
	end := time.After(b.hangFor)
	var worst time.Duration
	beats := 0
	for last := time.Now(); ; {
		select {
		case <-end:
			worst = max(worst, time.Since(last))
			limit := renew + renew/10
			b.note("heartbeat", fmt.Sprintf("longest gap while the runtime hangs for %s (%d beats)", b.hangFor, beats),
				"one interval, "+renew.String(), ms(worst), met(worst <= limit))
			return nil
		case e := <-w.ResultChan():
			if e.Type != watch.Modified {
				return fmt.Errorf("watching the lease: %s", e.Type)
			}
			beats++
			worst, last = max(worst, time.Since(last)), time.Now()
		}
	}
}

// What the pods of the last part may use, where it gets tight, and what the
// hog takes a second, in MiB.
const roomForPods, threshold, hogRate = 600, 100, 50

var leftInMessage = regexp.MustCompile(`available: (\S+)\. `)

// pressure has an agent of its own give pods little memory, and a pod take it.
func (b *bench) pressure(ctx context.Context) error {
	b.agent.Stop()
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return err
	}
	reserved := int64(info.Totalram)*int64(info.Unit)>>20 - roomForPods
	more := fmt.Sprintf("systemReserved: {memory: %dMi}\nevictionHard: {memory.available: %dMi}\nevictionPressureTransitionPeriod: 3s\n",
		reserved, threshold)
	var err error
	if b.agent, err = b.StartAgent(nodeName, more); err != nil {
		return err
	}
	if err := b.awaitHealth(ctx); err != nil {
		return err
	}
	hog := b.pod("hog", false)
	hog.Spec.RestartPolicy = v1.RestartPolicyNever
	hog.Spec.Containers[0].Image, hog.Spec.Containers[0].Args = "berth.dev/toolbox:1", []string{"hog", "4000", fmt.Sprint(hogRate)}
	var message string
	wait, err := b.watch(ctx, "", func(_ watch.EventType, p *v1.Pod) bool {
		message = p.Status.Message
		return p.Name == "hog" && p.Status.Phase == v1.PodFailed
	})
	if err != nil {
		return err
	}
	if _, err := b.Client.CoreV1().Pods("default").Create(ctx, hog, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := wait(); err != nil {
		return err
	}
	found := leftInMessage.FindStringSubmatch(message)
	if found == nil {
		return fmt.Errorf("the hog ended otherwise: %q", message)
	}
	left, err := resource.ParseQuantity(found[1])
	if err != nil {
		return err
	}
	// The hog's pace turns bytes below the threshold into time.
	late := time.Duration(threshold<<20-left.Value()) * time.Second / (hogRate << 20)
	b.note("pressure", fmt.Sprintf("memory shortage (%d MiB a second) -> first signal", hogRate), "1 s", ms(late), met(late <= time.Second))
	return nil
}

// runtimePID is the runtime's process.
func (b *bench) runtimePID() (int, error) {
	return rig.PID(filepath.Join(b.Dir, "rt/run/containerd.pid"))
}
