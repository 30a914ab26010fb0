package supervise

import (
	"errors"
	"time"
)

// Restart says what happens when a part ends without having been asked to.
type Restart int

const (
	// Never: a part that returns nil is done; an error ends the whole group.
	Never Restart = iota
	// OnFailure: a part that returns nil is done; after an error it starts again.
	OnFailure
	// Always: the part starts again, whatever it returned.
	Always
)

// Pauses before a part starts again: they double while it keeps ending, up to
// maxPause, and begin again after a life of longLife.
const (
	minPause = 500 * time.Millisecond
	maxPause = 30 * time.Second
	longLife = time.Minute
)

// errEnded stands for a part that returned nil though it should go on.
var errEnded = errors.New("it ended without being asked to")

// action is what to do about a part that ended.
type action int

const (
	done     action = iota // it is over, and nothing follows
	again                  // start it again after the pause
	endGroup               // end all others, with its error
)

// decision is an action with its pause and the error to record.
type decision struct {
	do    action
	after time.Duration
	err   error
}

// next decides what follows the end of a part that lived so long and ended with
// err. pause is the one before its last start, 0 at first; jitter, in [0,1),
// spreads parts that end together by up to half a pause. The pause to give next
// time comes with the decision.
func (r Restart) next(pause, lived time.Duration, err error, jitter float64) (decision, time.Duration) {
	switch {
	case err == nil && r != Always:
		return decision{do: done}, pause
	case r == Never:
		return decision{do: endGroup, err: err}, pause
	case err == nil:
		err = errEnded
	}
	switch {
	case pause == 0 || lived > longLife:
		pause = minPause
	default:
		pause = min(pause*2, maxPause)
	}
	return decision{do: again, after: pause + time.Duration(jitter*float64(pause)/2), err: err}, pause
}
