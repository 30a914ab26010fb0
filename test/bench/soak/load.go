package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
)

const node = "soak"

// start brings the parts up and the pods that stand still.
func (s *soak) start(ctx context.Context) error {
	if err := s.StartServer(); err != nil {
		return err
	}
	if err := s.StartRuntime(ctx, "10.209.0.0/21"); err != nil {
		return err
	}
	var err error
	if s.agent, err = s.StartAgent(node, fmt.Sprintf("maxPods: %d\n", 3*s.pods)); err != nil {
		return err
	}
	if err := s.WaitNode(ctx, node); err != nil {
		return err
	}
	transport, err := rest.TransportFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true, CertData: s.Admin.CertData,
		KeyData: s.Admin.KeyData, CertFile: s.Admin.CertFile, KeyFile: s.Admin.KeyFile}})
	if err != nil {
		return err
	}
	s.http = &http.Client{Transport: transport}
	if _, err := s.Client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx,
		&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"a": "1"}},
		metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := s.Client.CoreV1().Secrets(metav1.NamespaceDefault).Create(ctx, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"},
		StringData: map[string]string{"b": "2"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for i := range s.pods - s.pods/2 {
		if err := s.create(ctx, "standing", i); err != nil {
			return err
		}
	}
	return nil
}

// replace deletes one of the pods that change and makes it again under another
// name; every eleventh time the objects in its volumes change too.
func (s *soak) replace(ctx context.Context, slot int) error {
	pods := s.Client.CoreV1().Pods(metav1.NamespaceDefault)
	err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: fmt.Sprintf("slot=changing-%d", slot)})
	if err != nil {
		return fmt.Errorf("deleting the pod of slot %d: %w", slot, err)
	}
	if err := s.create(ctx, "changing", slot); err != nil {
		return err
	}
	s.replaced++
	if s.replaced%11 != 0 {
		return nil
	}
	maps := s.Client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	m, err := maps.Get(ctx, "settings", metav1.GetOptions{})
	if err != nil {
		return err
	}
	m.Data["a"] = strconv.Itoa(s.replaced)
	if _, err := maps.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("changing a config map: %w", err)
	}
	return nil
}

func (s *soak) create(ctx context.Context, kind string, slot int) error {
	_, err := s.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod(kind, slot), metav1.CreateOptions{})
	if err != nil && !apierrors.IsForbidden(err) { // the service account may not be there yet
		return fmt.Errorf("creating the pod of slot %d: %w", slot, err)
	}
	return nil
}

// pod is one of the five kinds that take turns.
func pod(kind string, slot int) *v1.Pod {
	grace := int64(1)
	c := v1.Container{Name: "c", Image: "berth.dev/pause:1"}
	spec := v1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &grace}
	switch slot % 5 {
	case 1, 2: // probed
		c.Image, c.Args = "berth.dev/toolbox:1", []string{"serve", "8080"}
		c.ReadinessProbe = &v1.Probe{PeriodSeconds: 10, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/",
			Port: intstr.FromInt32(8080)}}}
	case 3: // with volumes
		for name, source := range map[string]v1.VolumeSource{
			"settings": {ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}},
			"secret":   {Secret: &v1.SecretVolumeSource{SecretName: "secret"}},
			"scratch":  {EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}},
		} {
			spec.Volumes = append(spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
			c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
		}
	case 4: // ends again and again
		c.Image, c.Args = "berth.dev/toolbox:1", []string{"sleep", "5"}
	}
	spec.Containers = []v1.Container{c}
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: kind + "-",
		Labels: map[string]string{"slot": fmt.Sprintf("%s-%d", kind, slot)}}, Spec: spec}
}

// scrape asks the agent as metrics-server and a Prometheus do.
func (s *soak) scrape(ctx context.Context) error {
	paths := []string{"/metrics/resource", "/metrics", "/stats/summary", "/metrics/cadvisor", "/metrics/probes"}
	body, err := s.get(ctx, paths[s.scrapes%len(paths)])
	if err != nil {
		return err
	}
	s.scrapes++
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}

// get asks the agent's API.
func (s *soak) get(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", s.agent.Port, path), nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close() //nolint:errcheck // refused anyway
		return nil, fmt.Errorf("asking the agent for %s: %s", path, resp.Status)
	}
	return resp.Body, nil
}

// profile keeps the heap profiles of this moment: the agent's, and the server's
// if it offers one.
func (s *soak) profile(ctx context.Context, name string) error {
	keep := func(who string, body io.ReadCloser) error {
		defer body.Close()
		out, err := os.Create(filepath.Join(s.profiles, who+"-"+name))
		if err != nil {
			return err
		}
		defer out.Close()
		_, err = io.Copy(out, body)
		return err
	}
	body, err := s.get(ctx, "/debug/pprof/heap")
	if err != nil {
		return err
	}
	if err := keep("agent", body); err != nil {
		return err
	}
	body, err = s.Client.CoreV1().RESTClient().Get().AbsPath("/debug/pprof/heap").Stream(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil // a server does not offer it unless built to
	case err != nil:
		return fmt.Errorf("asking the server for its heap: %w", err)
	}
	return keep("server", body)
}
