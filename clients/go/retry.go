package rlaas

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// deadline returns the time of a call.
func (c *Client) deadline() time.Duration {
	if c.hasCalled.Load() {
		return c.timeout
	}
	return max(c.timeout, firstTimeout)
}

// attempts are the calls that a request may cause. They share the timeout equally.
type attempts struct {
	timeout time.Duration
	retries int
	// Set for Check and Reserve: this program may refuse them because it is late itself, and repeats none while many fail.
	isRequest bool
}

// twice are the attempts with the whole timeout, and once more without an answer.
func (c *Client) twice() attempts { return attempts{timeout: 2 * c.deadline(), retries: 1} }

// ask calls a method of the server, and again if the attempts allow it.
func ask[Q, R any](
	ctx context.Context, c *Client, may attempts, method func(context.Context, Q, ...grpc.CallOption) (R, error), message Q,
) (response R, err error) {
	err = c.call(ctx, may, func(ctx context.Context) (err error) {
		response, err = method(ctx, message)
		return err
	})
	return response, err
}

// call calls the server, and again if the attempts allow it.
func (c *Client) call(ctx context.Context, may attempts, do func(context.Context) error) error {
	// Metadata that the context has for other servers, such as a token, is not for this one.
	ctx = metadata.NewOutgoingContext(ctx, c.credentials)
	until := time.Now().Add(may.timeout)
	for attempt := 0; ; attempt++ {
		err := c.attempt(ctx, may, time.Until(until)/time.Duration(1+may.retries-attempt), do)
		c.hasCalled.Store(true)
		if errors.Is(ctx.Err(), context.Canceled) {
			return err
		}
		c.throttle.record(err)
		c.queue.record(err)
		// A server that sheds load asks for no more.
		isFinal := err == nil || isRejection(err) || status.Code(err) == codes.ResourceExhausted
		if isFinal || attempt == may.retries || ctx.Err() != nil || may.isRequest && !c.throttle.hasTokens() {
			return err
		}
	}
}

// attempt calls once. Where this program is so busy that it is late itself, an answer may be there that nobody has read
// yet: it waits for that as long again. The deadline of gRPC, which the server is sent, is twice the timeout.
func (c *Client) attempt(parent context.Context, may attempts, timeout time.Duration, do func(context.Context) error) error {
	due := time.Now().Add(timeout)
	ctx, cancel := context.WithDeadline(parent, due.Add(timeout))
	defer cancel()
	timer := time.AfterFunc(timeout, func() {
		c.yield()
		time.AfterFunc(time.Since(due), cancel)
	})
	defer timer.Stop()
	err := do(ctx)
	late, sent := time.Since(due), due.Add(-timeout).UnixNano()
	deadline, hasDeadline := parent.Deadline()
	switch {
	case isAnswer(err):
	case parent.Err() != nil || hasDeadline && deadline.Before(due):
		return errImpatient
	case may.isRequest && (late > timeout/2 || c.wasLate.Load() > sent):
		return errOverload
	case late >= 0:
		return status.Errorf(codes.DeadlineExceeded, "no response within %v (WithTimeout)", timeout.Round(time.Millisecond))
	}
	return err
}

// yield lets other goroutines run, such as those that send calls and read answers. If they are so many that it takes
// half of the timeout, this program is late.
func (c *Client) yield() {
	before := time.Now()
	runtime.Gosched()
	if now := time.Now(); now.Sub(before) > c.timeout/2 {
		c.wasLate.Store(now.UnixNano())
	}
}

// throttle stops retries if many calls fail, so that a server without answers gets about a tenth more calls.
//
// Source: gRPC proposal A6, "Throttling Retry Attempts and Hedged RPCs".
type throttle struct {
	// Tokens that are missing, in thousandths, of 10.
	missing atomic.Int64
}

const (
	fullThrottle = 10_000
	failureCost  = 1_000
	successGain  = 100
)

// record records the result of a call. A lost update changes the share of retries a little.
func (t *throttle) record(err error) {
	missing := t.missing.Load()
	if err != nil && !isRejection(err) {
		t.missing.Store(min(missing+failureCost, fullThrottle))
	} else if missing > 0 {
		t.missing.Store(max(missing-successGain, 0))
	}
}

// hasTokens returns true if more than half are left.
func (t *throttle) hasTokens() bool { return t.missing.Load() < fullThrottle/2 }
