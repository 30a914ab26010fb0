package api

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trustName is the config map in kube-system from which API servers behind ours
// learn whom to trust: clients by their certificate, and us by ours, with the
// user in the headers named there.
const trustName = "extension-apiserver-authentication"

// ensureTrust keeps that config map.
func (s *Server) ensureTrust(ctx context.Context) error {
	want, err := trustData(s.cfg.PKI)
	if err != nil {
		return err
	}
	client := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	have, err := client.Get(ctx, trustName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: trustName}, Data: want}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // another server's, which trusts the same
		}
	case err == nil && !maps.Equal(have.Data, want):
		have = have.DeepCopy()
		have.Data = want
		_, err = client.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing config map %s/%s: %w", metav1.NamespaceSystem, trustName, err)
	}
	return nil
}

func trustData(pki PKI) (map[string]string, error) {
	clients, err := os.ReadFile(pki.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("reading client CA: %w", err)
	}
	data := map[string]string{"client-ca-file": string(clients)}
	if pki.FrontProxyCA == "" {
		return data, nil
	}
	front, err := os.ReadFile(pki.FrontProxyCA)
	if err != nil {
		return nil, fmt.Errorf("reading front proxy CA: %w", err)
	}
	data["requestheader-client-ca-file"] = string(front)
	for key, list := range map[string][]string{
		"requestheader-username-headers":     {"X-Remote-User"},
		"requestheader-uid-headers":          {"X-Remote-Uid"},
		"requestheader-group-headers":        {"X-Remote-Group"},
		"requestheader-extra-headers-prefix": {"X-Remote-Extra-"},
		"requestheader-allowed-names":        {}, // anyone whom the CA signed
	} {
		text, err := json.Marshal(list)
		if err != nil {
			return nil, err
		}
		data[key] = string(text)
	}
	return data, nil
}
