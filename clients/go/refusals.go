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
// calls, or one at a time. Entries are in two generations; the older one is dropped as a whole.
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

// get returns the last refusal of a request.
func (r *refusals) get(key string) refusal {
	r.mutex.RLock()
	defer r.mutex.RUnlock()
	if found, ok := r.young[key]; ok {
		return found
	}
	return r.old[key]
}

// read returns the verdict of a refusal with the waits that are left.
func (r *refusals) read(found refusal) Verdict {
	return found.verdict.after(r.now().Sub(found.askedAt))
}

// insert remembers a refusal, and returns it; nil of an allowed request. Units that are held may be free at any time:
// HELD is not remembered, nor is a server without a decision. Only a refusal by a limit holds for calls after it.
func (r *refusals) insert(key string, askedAt time.Time, verdict Verdict) *refusal {
	if verdict.Allowed || verdict.isUndecided() || verdict.Reason == pb.CheckResponse_HELD.String() {
		return nil
	}
	made := refusal{askedAt: askedAt, verdict: verdict}
	if wait, ok := verdict.RetryAfter(); ok && verdict.Reason == pb.CheckResponse_OVER_LIMIT.String() {
		made.holdsUntil = askedAt.Add(min(wait, r.maxAge))
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if now := r.now(); len(r.young) >= maxRefusals || now.Sub(r.since) >= max(r.maxAge, recently) {
		r.since, r.old, r.young = now, r.young, make(map[string]refusal)
	}
	if len(key) <= maxRefusalKey {
		r.young[key] = made
	}
	return &made
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
