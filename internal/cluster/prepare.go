package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/berth-dev/berth/internal/agent/volume"
	"github.com/berth-dev/berth/internal/journal"
)

// prepare checks the host and takes the data directory. The undo it
// returns frees it again and, after a failed first start, removes it.
func (u *up) prepare() (undo func(error), err error) {
	err = u.clock.stage("checks", func() (string, error) {
		if pid := Running(u.DataDir); pid != 0 {
			return "", &ErrRunning{u.DataDir, pid}
		}
		var err error
		u.facts, err = u.preflight()
		return fmt.Sprintf("cgroups %s, %s free for everything", u.facts.Cgroups, u.DataDir), err
	})
	if err != nil {
		return nil, err
	}
	_, statErr := os.Stat(u.settingsFile())
	fresh := errors.Is(statErr, os.ErrNotExist) && onlyOurs(u.DataDir)
	if err := os.MkdirAll(u.DataDir, 0o755); err != nil {
		return nil, fmt.Errorf("making the data directory: %w", err)
	}
	release, err := lock(u.DataDir)
	if err != nil {
		return nil, err
	}
	undo = func(failure error) {
		if failure != nil && u.startedRuntime {
			stop, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := u.runtime.Stop(stop); err != nil {
				u.log.Error("stopping the runtime after a failed start", "err", err)
			}
		}
		if failure != nil && !u.isReady() && u.Role.node() {
			if err := volume.UnshareRoot(u.Path("agent")); err != nil {
				u.log.Error("undoing a failed start", "err", err)
			}
		}
		if failure != nil && fresh && !u.isReady() {
			// The logs stay: the message names them.
			if err := u.purge("logs"); err != nil {
				u.clock.note("undo", err.Error())
			}
		}
		if u.journal != nil {
			if err := u.journal.Close(); err != nil {
				u.log.Error("closing the journal", "err", err)
			}
		}
		if u.logs != nil {
			u.logs.close()
		}
		release()
	}
	if u.logs, err = newLogs(u.Path("logs"), u.LogFormat, u.LogLevel); err == nil {
		u.log, err = u.logs.part("berth")
	}
	if err == nil {
		err = u.save()
	}
	if err == nil {
		err = u.dropStaleRun(u.facts.BootID)
	}
	if err != nil {
		undo(err)
		return nil, err
	}
	return undo, nil
}

func (u *up) ensureCertificates(context.Context) error {
	return u.clock.stage("certificates", func() (string, error) {
		var wrote int
		var err error
		u.files, wrote, err = u.certificates(time.Now())
		u.ends.Store(&u.files.Ends)
		return fmt.Sprintf("%d made or renewed", wrote), err
	})
}

func (u *up) openJournal(context.Context) (err error) {
	if u.journal, err = journal.Open(u.Path("journal"), journal.Limits{}); err != nil {
		return fmt.Errorf("opening the journal: %w", err)
	}
	return nil
}
