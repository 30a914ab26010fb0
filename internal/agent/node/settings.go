package node

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/config"
)

// SettingsFor takes from a configuration what decides about the Node's status.
// Version is the Kubernetes version the agent speaks.
func SettingsFor(cfg *kubeletv1beta1.KubeletConfiguration, id Identity, version string) (Settings, error) {
	set := Settings{Identity: id, Port: cfg.Port, Version: version, MaxImages: 50,
		Limits: Limits{MaxPods: int64(cfg.MaxPods), PodsPerCore: int64(cfg.PodsPerCore)}}
	if cfg.NodeStatusMaxImages != nil {
		set.MaxImages = int(*cfg.NodeStatusMaxImages)
	}
	var err error
	if set.Reserved.System, err = resources("systemReserved", cfg.SystemReserved); err != nil {
		return set, err
	}
	if set.Reserved.Kube, err = resources("kubeReserved", cfg.KubeReserved); err != nil {
		return set, err
	}
	if err := set.Reserved.NameCPUs(cfg.ReservedSystemCPUs); err != nil {
		return set, err
	}
	hard := cfg.EvictionHard
	if hard == nil {
		hard = config.DefaultEvictionHard()
	}
	set.Reserved.EvictionHard, err = evictionReservation(hard)
	return set, err
}

func resources(field string, texts map[string]string) (v1.ResourceList, error) {
	list := v1.ResourceList{}
	for name, text := range texts {
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("reading %s[%s]: %w", field, name, err)
		}
		list[v1.ResourceName(name)] = quantity
	}
	return list, nil
}

// Complete fills in what settings leave open from the configuration.
func (s *Settings) Complete(k *kubeletv1beta1.KubeletConfiguration) error {
	if s.Limits.MaxPods == 0 {
		s.Limits.MaxPods = 110
		if k.MaxPods > 0 {
			s.Limits.MaxPods = int64(k.MaxPods)
		}
	}
	if s.Limits.PodsPerCore == 0 {
		s.Limits.PodsPerCore = int64(k.PodsPerCore)
	}
	if s.Port == 0 {
		s.Port = k.Port
	}
	if s.MaxImages == 0 {
		s.MaxImages = 50
		if k.NodeStatusMaxImages != nil {
			s.MaxImages = int(*k.NodeStatusMaxImages)
		}
	}
	if s.Identity.ProviderID == "" {
		s.Identity.ProviderID = k.ProviderID
	}
	var err error
	if s.Reserved.System == nil {
		if s.Reserved.System, err = resources("systemReserved", k.SystemReserved); err != nil {
			return err
		}
	}
	if s.Reserved.Kube == nil {
		if s.Reserved.Kube, err = resources("kubeReserved", k.KubeReserved); err != nil {
			return err
		}
	}
	if err := s.Reserved.NameCPUs(k.ReservedSystemCPUs); err != nil {
		return err
	}
	if s.Reserved.EvictionHard == nil {
		s.Reserved.EvictionHard, err = evictionReservation(k.EvictionHard)
	}
	return err
}
