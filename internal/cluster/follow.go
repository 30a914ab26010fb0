package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"

	"github.com/berth-dev/berth/internal/journal"
)

// followJournal streams decisions as they are taken, one JSON record a line.
func (u *up) followJournal(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	flush.Flush() //nolint:errcheck // the first record shows whether the client is there
	out := json.NewEncoder(w)
	u.journal.Follow(r.Context(), func(rec journal.Record) error {
		if err := out.Encode(rec); err != nil {
			return err
		}
		return flush.Flush()
	})
}

// FollowJournal calls f with each decision that the cluster on dataDir takes
// from now on, until ctx ends or the cluster does.
func FollowJournal(ctx context.Context, dataDir string, f func(journal.Record)) error {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", ControlSocket(dataDir))
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth/journal/follow", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("following the journal of the cluster on %s: %w", dataDir, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("following the journal of the cluster on %s: %s", dataDir, resp.Status)
	}
	in := bufio.NewScanner(resp.Body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var rec journal.Record
		if err := json.Unmarshal(in.Bytes(), &rec); err != nil {
			return fmt.Errorf("following the journal of the cluster on %s: %w", dataDir, err)
		}
		f(rec)
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("following the journal of the cluster on %s: it ended (%v)", dataDir, in.Err())
}
