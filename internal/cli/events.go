package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/cluster"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/why"
)

func eventsCommand() *cobra.Command {
	var o whyOptions
	var follow bool
	var about string
	var last int
	cmd := &cobra.Command{
		Use:   "events",
		Short: "show events, decisions and restarts as one stream",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.output != "text" && o.output != "json" {
				return fmt.Errorf("--output %q: allowed are text and json", o.output)
			}
			want, err := objectOf(about, o.namespace)
			if err != nil {
				return err
			}
			s := &stream{out: cmd.OutOrStdout(), json: o.output == "json", want: want}
			return s.run(cmd.Context(), &o, last, follow)
		},
	}
	clusterFlags(cmd, &o.dataDir)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens from now on")
	cmd.Flags().StringVarP(&o.namespace, "namespace", "n", "", "only objects of this namespace (default: all objects)")
	cmd.Flags().StringVar(&about, "for", "", "only this object: KIND/NAME")
	cmd.Flags().IntVar(&last, "last", 30, "how many past entries to show first")
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "",
		"the API to ask, and as whom (default: $KUBECONFIG, or admin.kubeconfig of --data-dir)")
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "text, or json: one entry a line")
	return cmd
}

// objectOf reads --for KIND/NAME.
func objectOf(about, namespace string) (journal.Ref, error) {
	ref := journal.Ref{Namespace: namespace}
	if about == "" {
		return ref, nil
	}
	word, name, ok := strings.Cut(about, "/")
	kind, namespaced, known := why.KindOf(word)
	if !ok || !known || name == "" {
		return ref, fmt.Errorf("--for %q: want KIND/NAME, with a kind of %s", about, why.Words())
	}
	ref.Kind, ref.Name = kind, name
	if !namespaced {
		ref.Namespace = ""
	}
	return ref, nil
}

// stream writes entries. mu lets one writer at a time.
type stream struct {
	json bool
	want journal.Ref

	mu  sync.Mutex
	out io.Writer
	// written is the first failure of out: its reader left.
	written error
	stop    context.CancelFunc
}

func (s *stream) write(e why.Entry) {
	if !e.Wanted(s.want) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written != nil {
		return
	}
	if s.json {
		s.written = json.NewEncoder(s.out).Encode(e)
	} else {
		_, s.written = io.WriteString(s.out, e.String())
	}
	if s.written != nil && s.stop != nil {
		s.stop()
	}
}

func (s *stream) run(ctx context.Context, o *whyOptions, last int, follow bool) error {
	rc, err := o.client()
	if err != nil {
		return err
	}
	rc.Timeout = 0 // watches last
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return fmt.Errorf("using the kubeconfig: %w", err)
	}
	local := cluster.Running(o.dataDir) != 0
	resume, err := s.past(ctx, client, o, last, local)
	if err != nil || !follow {
		return errors.Join(err, s.written)
	}
	ctx, s.stop = context.WithCancel(ctx)
	defer s.stop()
	g, ctx := errgroup.WithContext(ctx)
	if local {
		g.Go(func() error {
			return cluster.FollowJournal(ctx, o.dataDir, func(r journal.Record) { s.write(why.FromRecord(r)) })
		})
	}
	g.Go(func() error { return s.watch(ctx, client, resume) })
	if err := g.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return s.written
}

// past writes the newest entries, and returns the events that it had.
func (s *stream) past(ctx context.Context, client kubernetes.Interface, o *whyOptions, last int, local bool) (map[string]bool, error) {
	list, err := client.CoreV1().Events(s.want.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing events: %w", err)
	}
	seen := map[string]bool{}
	var entries []why.Entry
	for i := range list.Items {
		seen[eventVersion(&list.Items[i])] = true
		entries = append(entries, why.FromEvent(&list.Items[i]))
	}
	if local {
		records, err := cluster.Why(ctx, o.dataDir, s.want)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			entries = append(entries, why.FromRecord(r))
		}
	}
	entries = slices.DeleteFunc(entries, func(e why.Entry) bool { return !e.Wanted(s.want) })
	slices.SortStableFunc(entries, func(a, b why.Entry) int { return a.Time.Compare(b.Time) })
	for _, e := range entries[max(len(entries)-max(last, 0), 0):] {
		s.write(e)
	}
	return seen, nil
}

// eventVersion names one state of an event.
func eventVersion(e *v1.Event) string { return string(e.UID) + "/" + e.ResourceVersion }

// watch writes new events and restarts until ctx ends.
func (s *stream) watch(ctx context.Context, client kubernetes.Interface, seen map[string]bool) error {
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(s.want.Namespace))
	event := func(o any) {
		if e, ok := o.(*v1.Event); ok && !seen[eventVersion(e)] {
			s.write(why.FromEvent(e))
		}
	}
	pod := func(before, after any) {
		b, _ := before.(*v1.Pod) //nolint:errcheck // nil of a pod that is new
		if a, ok := after.(*v1.Pod); ok {
			for _, e := range why.Restarts(b, a) {
				s.write(e)
			}
		}
	}
	_, err := f.Core().V1().Events().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: event,
		UpdateFunc: func(_, o any) { event(o) }})
	if err != nil {
		return err
	}
	if _, err = f.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: pod}); err != nil {
		return err
	}
	f.Start(ctx.Done())
	<-ctx.Done()
	f.Shutdown()
	return nil
}
