package rlaas

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// Most calls of Check in flight, and of Reserve.
	maxInFlight = 128
	// Most calls that wait, a quarter of them of one key, and their longest time.
	maxWaiting = 10_000
	maxWait    = time.Second
	// Time for which one call at a time asks again for a key that was refused.
	recently = time.Second
)

// queue bounds the calls of Check that are in flight, so that the time of a call begins when it is sent: a flood does
// not run into it. Keys are served in turn, so that the flood of one does not delay another. Of a key that was refused
// recently one call is in flight, a probe, and its refusal decides those that wait.
type queue struct {
	timeout, longest time.Duration

	mutex    sync.Mutex
	inFlight int
	waiting  int
	// Keys with calls that wait, or with a probe.
	flows map[string]*flow
	// Flows whose next call waits for its turn: those without a probe.
	turns []*flow
	// Error of a call that finds no room: errOverload, or why the server does not answer, until the next answer.
	full       error
	lastAnswer time.Time
}

// flow has the calls of one key.
type flow struct {
	key       string
	refusedAt time.Time
	waiting   []chan decision
	hasProbe  bool
}

// decision ends the wait of a call, which may be sent unless it is refused or has an error.
type decision struct {
	refused *refusal
	err     error
	isProbe bool
}

// enter waits until a call may be sent, or is decided. One that is sent must leave. The first call has more time, and
// those that wait for it have that, too.
func (q *queue) enter(ctx context.Context, key string, refusedAt time.Time, more time.Duration) decision {
	decided := make(chan decision, 1)
	f := q.sendOrQueue(key, refusedAt, decided)
	if f == nil {
		return <-decided
	}
	ctx, cancel := context.WithTimeout(ctx, q.longest+more)
	defer cancel()
	select {
	case made := <-decided:
		return made
	case <-ctx.Done():
	}
	q.mutex.Lock()
	defer q.mutex.Unlock()
	index := slices.Index(f.waiting, decided)
	if index < 0 {
		return <-decided
	}
	f.waiting = slices.Delete(f.waiting, index, index+1)
	q.waiting--
	q.removeIdle(f)
	return decision{err: errOverload}
}

// sendOrQueue decides a call at once, or returns the flow in which it waits.
func (q *queue) sendOrQueue(key string, refusedAt time.Time, decided chan decision) *flow {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	f, isKnown := q.flows[key]
	if !isKnown {
		f = &flow{key: key, refusedAt: refusedAt}
	}
	switch {
	case q.inFlight < maxInFlight && !isKnown:
		q.send(f, decided)
	case q.full != errOverload || q.waiting == maxWaiting || len(f.waiting) == maxWaiting/4:
		decided <- decision{err: q.full}
	default:
		if !isKnown {
			q.flows[key] = f
			q.turns = append(q.turns, f)
		}
		f.waiting = append(f.waiting, decided)
		q.waiting++
		return f
	}
	return nil
}

// leave ends a call that was sent. Its refusal decides those that wait with the same key.
func (q *queue) leave(key string, isProbe bool, refused *refusal) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	q.inFlight--
	if f := q.flows[key]; f != nil {
		if isProbe {
			f.hasProbe = false
			q.turns = append(q.turns, f)
		}
		if refused != nil {
			q.decide(f, decision{refused: refused})
		}
		q.removeIdle(f)
	}
	for q.inFlight < maxInFlight && len(q.turns) > 0 {
		f := q.turns[0]
		if q.turns = q.turns[1:]; len(f.waiting) == 0 {
			continue
		}
		decided := f.waiting[0]
		f.waiting = f.waiting[1:]
		q.waiting--
		if q.send(f, decided); !f.hasProbe {
			q.turns = append(q.turns, f)
		}
		q.removeIdle(f)
	}
}

// record records the result of any call. Without an answer within the timeout before there is nothing to wait for.
func (q *queue) record(err error) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	switch {
	// Neither shows anything about the server.
	case err == errImpatient || err == errOverload:
	case isAnswer(err):
		q.full, q.lastAnswer = errOverload, time.Now()
	case time.Since(q.lastAnswer) > q.timeout:
		q.full = err
		for _, f := range q.flows {
			q.decide(f, decision{err: err})
		}
	}
}

// noRoom returns the error of a call that finds no room.
func (q *queue) noRoom() error {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	return q.full
}

// send lets a call of a flow go. It is a probe if its key was refused recently.
func (q *queue) send(f *flow, decided chan decision) {
	q.inFlight++
	if f.hasProbe = !f.refusedAt.IsZero() && time.Since(f.refusedAt) < recently; f.hasProbe {
		q.flows[f.key] = f
	}
	decided <- decision{isProbe: f.hasProbe}
}

// decide ends the wait of all calls of a flow.
func (q *queue) decide(f *flow, made decision) {
	for _, decided := range f.waiting {
		decided <- made
	}
	q.waiting -= len(f.waiting)
	f.waiting = nil
	q.removeIdle(f)
}

// removeIdle removes a flow that nothing waits in. One that has its turn is skipped then.
func (q *queue) removeIdle(f *flow) {
	if len(f.waiting) == 0 && !f.hasProbe {
		delete(q.flows, f.key)
	}
}
