package rlaas

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "rlaas.example/clients/go/ratelimitv1"
)

const (
	// Most refusals of a generation: two of them have 10,000.
	maxRefusals = 5_000
	// Longer requests are not remembered, which bounds the memory.
	maxRefusalKey = 512
)

// refusals are remembered by the bytes of their requests, so that a caller that repeats a refused request causes no
// calls. Entries are in two generations; the older one is dropped as a whole.
type refusals struct {
	maxAge time.Duration
	now    func() time.Time

	mutex      sync.RWMutex
	since      time.Time
	young, old map[string]refusal
}

type refusal struct {
	// Time at which the request was sent. The decision was made then or later.
	askedAt    time.Time
	holdsUntil time.Time
	verdict    Verdict
}

// get returns the refusal of a request, with the waits that are left, if it still holds.
func (r *refusals) get(key string) (Verdict, bool) {
	r.mutex.RLock()
	found, ok := r.young[key]
	if !ok {
		found, ok = r.old[key]
	}
	r.mutex.RUnlock()
	now := r.now()
	if !ok || !now.Before(found.holdsUntil) {
		return Verdict{}, false
	}
	return found.verdict.after(now.Sub(found.askedAt)), true
}

// insert remembers a refusal by a limit. Units that are held may be free at any time: HELD is not remembered.
func (r *refusals) insert(key string, askedAt time.Time, verdict Verdict) {
	wait, ok := verdict.RetryAfter()
	if !ok || verdict.Reason != pb.CheckResponse_OVER_LIMIT || r.maxAge <= 0 || len(key) > maxRefusalKey {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if now := r.now(); len(r.young) >= maxRefusals || now.Sub(r.since) >= r.maxAge {
		r.since, r.old, r.young = now, r.young, make(map[string]refusal)
	}
	r.young[key] = refusal{askedAt: askedAt, holdsUntil: askedAt.Add(min(wait, r.maxAge)), verdict: verdict}
}

// after returns a refusal as it reads later.
func (v Verdict) after(elapsed time.Duration) Verdict {
	response := proto.CloneOf(v.Response)
	response.Source = pb.CheckResponse_DENY_CACHE
	response.RetryAfter = shorten(response.RetryAfter, elapsed)
	response.ResetAfter = shorten(response.ResetAfter, elapsed)
	// The rules that allowed the request may deny it by now.
	response.Decisions = slices.DeleteFunc(response.Decisions, (*pb.RuleDecision).GetAllowed)
	for _, decision := range response.Decisions {
		decision.RetryAfter = shorten(decision.RetryAfter, elapsed)
		decision.ResetAfter = shorten(decision.ResetAfter, elapsed)
	}
	return newVerdict(response, Cache)
}

func shorten(wait *durationpb.Duration, elapsed time.Duration) *durationpb.Duration {
	if wait == nil {
		return nil
	}
	return durationpb.New(max(wait.AsDuration()-elapsed, time.Microsecond))
}
