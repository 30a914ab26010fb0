package journal

import "context"

// followBuffer bounds the records that wait for one follower.
const followBuffer = 1000

// Follow calls f with each record that is appended from now on, until ctx ends
// or the follower is so slow that followBuffer records wait: then it returns
// false, since a stream with a hole would not be noticed.
func (r *Ring) Follow(ctx context.Context, f func(Record) error) (complete bool) {
	records := make(chan Record, followBuffer)
	r.mu.Lock()
	if r.followers == nil {
		r.followers = map[chan Record]bool{}
	}
	r.followers[records] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.followers, records)
		r.mu.Unlock()
	}()
	for {
		select {
		case rec, ok := <-records:
			if !ok {
				return false
			}
			if f(rec) != nil {
				return true // the follower left
			}
		case <-ctx.Done():
			return true
		}
	}
}

// tell hands a record to the followers; mu is held. It never blocks.
func (r *Ring) tell(rec Record) {
	for records := range r.followers {
		select {
		case records <- rec:
		default:
			delete(r.followers, records)
			close(records)
		}
	}
}
