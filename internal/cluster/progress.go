package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Event is one step of progress: a stage began, ended or failed.
type Event struct {
	Stage string `json:"stage"`
	// State is "start", "done", "note", "stop" (ended because another stage
	// failed) or "fail".
	State string `json:"state"`
	// At is the time since the command began.
	At time.Duration `json:"at"`
	// Took is how long the stage took, for done and fail.
	Took   time.Duration `json:"took,omitempty"`
	Detail string        `json:"detail,omitempty"`
}

// Progress receives events, from several goroutines.
type Progress func(Event)

// Printer writes events for a person: a terminal gets one live line that names
// the stages under way, anything else gets plain lines.
func Printer(w io.Writer, terminal bool) Progress {
	var (
		mu      sync.Mutex
		running []string
	)
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		if terminal {
			fmt.Fprint(w, "\r\x1b[K")
		}
		switch e.State {
		case "start":
			running = append(running, e.Stage)
		case "done", "fail", "stop":
			for i, s := range running {
				if s == e.Stage {
					running = append(running[:i], running[i+1:]...)
					break
				}
			}
			mark := "ok  "
			if e.State == "fail" {
				mark = "FAIL"
			}
			if e.State == "stop" {
				mark = "stop"
			}
			fmt.Fprintf(w, "%8s  %s  %-12s %6s  %s\n", ms(e.At), mark, e.Stage, ms(e.Took), e.Detail)
		case "note":
			fmt.Fprintf(w, "%8s  note  %-12s %s\n", ms(e.At), e.Stage, e.Detail)
		}
		if terminal && len(running) > 0 {
			fmt.Fprintf(w, "%8s  ...   %v", ms(e.At), running)
		}
	}
}

func ms(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// Encoder writes events as JSON lines, for the command that waits for a
// detached berth.
func Encoder(w io.Writer) Progress {
	var mu sync.Mutex
	enc := json.NewEncoder(w)
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		// The reader may be gone: it only watches the start.
		_ = enc.Encode(e)
	}
}

// clock turns stages into events with times since its start.
type clock struct {
	began time.Time
	emit  Progress
}

// stage runs f and reports it; the detail f returns is shown to the user.
func (c clock) stage(name string, f func() (detail string, err error)) error {
	start := time.Now()
	c.emit(Event{Stage: name, State: "start", At: start.Sub(c.began)})
	detail, err := f()
	e := Event{Stage: name, State: "done", At: time.Since(c.began), Took: time.Since(start), Detail: detail}
	switch {
	case errors.Is(err, context.Canceled):
		e.State, e.Detail = "stop", "not finished"
	case err != nil:
		e.State, e.Detail = "fail", err.Error()
	}
	c.emit(e)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (c clock) note(stage, text string) {
	c.emit(Event{Stage: stage, State: "note", At: time.Since(c.began), Detail: text})
}
