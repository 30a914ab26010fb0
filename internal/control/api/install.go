package api

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/berth-dev/berth/internal/control/api/aggregation"
	"github.com/berth-dev/berth/internal/control/api/registry"
	"github.com/berth-dev/berth/internal/control/api/scheme"
)

// storages are what is served, by group version and URL part ("pods",
// "pods/status").
type storages = map[schema.GroupVersion]map[string]rest.Storage

// add puts more storages of a group version in, replacing equal names.
func add(to storages, gv schema.GroupVersion, more map[string]rest.Storage) {
	if to[gv] == nil {
		to[gv] = map[string]rest.Storage{}
	}
	maps.Copy(to[gv], more)
}

// install builds the storages of all kinds and installs them in the server. It
// returns the groups in the order of discovery.
func (s *Server) install(set *scheme.Set, all []registry.Resource) ([]aggregation.Group, error) {
	made := storages{}
	for _, kind := range all {
		i := kind.Info()
		if i.CustomStorage {
			continue
		}
		named, err := kind.NewStorages(set.Scheme, s.backend)
		if err != nil {
			return nil, err
		}
		add(made, i.GroupVersion, named)
	}
	add(made, corev1.SchemeGroupVersion, map[string]rest.Storage{"componentstatuses": &componentStatuses{etcd: s.cfg.Store.Health}})
	if err := s.addCustomStorages(set.Scheme, made); err != nil {
		return nil, err
	}
	for _, named := range made {
		for _, storage := range named {
			if cached, ok := storage.(rest.StorageWithReadiness); ok {
				s.caches = append(s.caches, cached)
			}
		}
	}
	return s.installGroups(set, made)
}

// installGroups hands the storages to the library, the core group first.
func (s *Server) installGroups(set *scheme.Set, made storages) ([]aggregation.Group, error) {
	groups := map[string]*genericapiserver.APIGroupInfo{}
	for gv, named := range made {
		info := groups[gv.Group]
		if info == nil {
			fresh := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, set.Scheme, set.ParameterCodec, set.Codecs)
			info = &fresh
			groups[gv.Group] = info
		}
		info.VersionedResourcesStorageMap[gv.Version] = named
	}
	var listed []aggregation.Group
	if core := groups[""]; core != nil {
		if err := s.generic.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, core); err != nil {
			return nil, fmt.Errorf("installing the core group: %w", err)
		}
		core.StaticOpenAPISpec = nil
		listed = append(listed, group("", core))
		delete(groups, "")
	}
	var rest []*genericapiserver.APIGroupInfo
	for _, name := range groupOrder {
		if info := groups[name]; info != nil {
			rest = append(rest, info)
			listed = append(listed, group(name, info))
			delete(groups, name)
		}
	}
	for name := range groups {
		return nil, fmt.Errorf("installing group %s: it has no place in the order of groups", name)
	}
	if err := s.generic.InstallAPIGroups(rest...); err != nil {
		return nil, fmt.Errorf("installing groups: %w", err)
	}
	for _, info := range rest {
		info.StaticOpenAPISpec = nil // only the models made from it are used
	}
	return listed, nil
}

// group is what discovery says of a group that is installed.
func group(name string, info *genericapiserver.APIGroupInfo) aggregation.Group {
	out := aggregation.Group{Name: name}
	for _, gv := range info.PrioritizedVersions {
		if _, served := info.VersionedResourcesStorageMap[gv.Version]; served {
			out.Versions = append(out.Versions, gv.Version)
		}
	}
	return out
}

// groupOrder is how discovery lists groups: clients that look a kind up by its
// short name take the first match.
var groupOrder = []string{
	"apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling", "batch",
	"certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io",
	"admissionregistration.k8s.io", "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io",
	"discovery.k8s.io", "flowcontrol.apiserver.k8s.io", "resource.k8s.io",
}
