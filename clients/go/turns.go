package rlaas

import (
	"context"
	"sync"
	"time"

	pb "rlaas.example/clients/go/ratelimitv1"
)

const (
	// Most requests of a route at once that may wait in place of a refusal.
	maxTurns = 1_000
	// Pause of a request that is refused for what others hold, who may settle at any time.
	heldPause = 50 * time.Millisecond
)

// turns are the requests of a route that may wait in place of a refusal. Those with one key are decided in turn.
type turns struct {
	mutex   sync.Mutex
	waiting int
	byKey   map[string]*turn
}

// turn is the requests of a key. The first of them fills the channel, and asks.
type turn struct {
	first   chan struct{}
	waiting int
}

// decide attempts a decision, and again until the request is allowed, for at most this time to wait.
func (t *turns) decide(
	ctx context.Context, wait time.Duration, key string, attempt func() (Verdict, *rejection),
) (Verdict, *rejection) {
	until := time.Now().Add(wait)
	mine := t.enter(key)
	if mine == nil {
		return attempt()
	}
	defer t.leave(key, mine)
	select {
	case mine.first <- struct{}{}:
		defer func() { <-mine.first }()
	case <-time.After(wait):
	case <-ctx.Done():
	}
	for {
		verdict, rejected := attempt()
		again := pause(verdict, until)
		if again <= 0 {
			return verdict, rejected
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return verdict, rejected
		}
	}
}

// enter returns the turn of a key, or nil if there is no place.
func (t *turns) enter(key string) *turn {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.waiting == maxTurns {
		return nil
	}
	found := t.byKey[key]
	if found == nil {
		found = &turn{first: make(chan struct{}, 1)}
		t.byKey[key] = found
	}
	t.waiting++
	found.waiting++
	return found
}

func (t *turns) leave(key string, left *turn) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.waiting--
	if left.waiting--; left.waiting == 0 {
		delete(t.byKey, key)
	}
}

// pause returns the time after which to ask again; zero or less where that is too late, or does not help.
func pause(verdict Verdict, until time.Time) time.Duration {
	wait, _ := verdict.RetryAfter()
	left := time.Until(until)
	switch {
	case verdict.Reason == pb.CheckResponse_HELD.String():
		return min(wait, heldPause, left)
	case verdict.Reason == pb.CheckResponse_OVER_LIMIT.String() && wait <= left:
		return wait
	}
	return 0
}
