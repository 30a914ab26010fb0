package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// User is who called the installation.
type User struct {
	Home     string
	UID, GID int
}

// kubeconfigEntry is a context that was added to a user's kubeconfig.
type kubeconfigEntry struct {
	File    string `json:"file"`
	Context string `json:"context"`
	// Created is true if the file was not there before.
	Created bool `json:"created,omitempty"`
}

// MergeKubeconfig adds the cluster of an admin kubeconfig to the user's, which
// keeps all that it has, its current context too.
func (h Host) MergeKubeconfig(admin string, user User) error {
	from, err := clientcmd.LoadFromFile(h.path(admin))
	if err != nil {
		return fmt.Errorf("reading the cluster's kubeconfig: %w", err)
	}
	file := filepath.Join(user.Home, ".kube", "config")
	text, err := os.ReadFile(h.path(file))
	created := errors.Is(err, fs.ErrNotExist)
	if err != nil && !created {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	into, err := clientcmd.Load(text)
	if err != nil {
		return fmt.Errorf("reading %s: %w: nothing is changed; correct it or move it away", file, err)
	}
	name := merge(into, from)
	out, err := clientcmd.Write(*into)
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	rec, err := h.read()
	if err != nil {
		return err
	}
	entry := kubeconfigEntry{File: file, Context: name, Created: created}
	if !slices.ContainsFunc(rec.Kubeconfigs, func(k kubeconfigEntry) bool { return k.File == file && k.Context == name }) {
		rec.Kubeconfigs = append(rec.Kubeconfigs, entry)
	}
	newDir := !exists(h.path(filepath.Dir(file)))
	if newDir {
		rec.Dirs = append(rec.Dirs, filepath.Dir(file))
	}
	if err := h.save(rec); err != nil {
		return err
	}
	if bytes.Equal(out, text) {
		return nil
	}
	if err := h.putPrivate(file, out, user); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	if newDir {
		if err := os.Lchown(h.path(filepath.Dir(file)), user.UID, user.GID); err != nil {
			return fmt.Errorf("writing %s: %w", file, err)
		}
	}
	fmt.Fprintf(h.Out, "%-10s %s: context %s\n", "wrote", file, name)
	return nil
}

// putPrivate replaces a file of the user: only that user may read it.
func (h Host) putPrivate(file string, text []byte, user User) error {
	to := h.path(file)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".berth-*") // mode 0600, and never through a link
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(text); err != nil {
		f.Close()
		return err
	}
	if err := f.Chown(user.UID, user.GID); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), to)
}

// merge puts the one cluster of from into a kubeconfig, under the first name
// that is free or is the same cluster's, and returns that name.
func merge(into, from *clientcmdapi.Config) string {
	ctx := from.Contexts[from.CurrentContext]
	cluster, user := from.Clusters[ctx.Cluster], from.AuthInfos[ctx.AuthInfo]
	for n := 1; ; n++ {
		name := "berth"
		if n > 1 {
			name = fmt.Sprintf("berth-%d", n)
		}
		if c, ok := into.Clusters[name]; ok && (c.Server != cluster.Server || !bytes.Equal(c.CertificateAuthorityData,
			cluster.CertificateAuthorityData)) {
			continue
		}
		_, taken := into.Contexts[name]
		if _, ours := into.Clusters[name]; taken && !ours {
			continue
		}
		into.Clusters[name], into.AuthInfos[name] = cluster.DeepCopy(), user.DeepCopy()
		if !taken {
			into.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
		}
		// Where a part was read from is no part of it.
		into.Clusters[name].LocationOfOrigin, into.AuthInfos[name].LocationOfOrigin = "", ""
		if into.CurrentContext == "" {
			into.CurrentContext = name
		}
		return name
	}
}

// dropContext takes a context of ours out of a kubeconfig, and the file away if
// nothing is left of it and it was ours.
func (h Host) dropContext(k kubeconfigEntry) error {
	text, err := os.ReadFile(h.path(k.File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	cfg, err := clientcmd.Load(text)
	if err != nil {
		return fmt.Errorf("reading %s: %w: remove context %s yourself", k.File, err, k.Context)
	}
	delete(cfg.Contexts, k.Context)
	delete(cfg.Clusters, k.Context)
	delete(cfg.AuthInfos, k.Context)
	if cfg.CurrentContext == k.Context {
		cfg.CurrentContext = ""
	}
	if k.Created && len(cfg.Contexts) == 0 && len(cfg.Clusters) == 0 && len(cfg.AuthInfos) == 0 {
		return os.Remove(h.path(k.File))
	}
	out, err := clientcmd.Write(*cfg)
	if err != nil {
		return err
	}
	owner, err := ownerOf(h.path(k.File))
	if err != nil {
		return err
	}
	return h.putPrivate(k.File, out, owner)
}
