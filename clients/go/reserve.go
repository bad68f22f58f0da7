package rlaas

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "rlaas.example/clients/go/ratelimitv1"
)

// Held is what the rules hold for a request while its work is done.
type Held struct {
	// Verdict is the verdict that allowed the work.
	Verdict Verdict
	// ID is that of the reservation. Empty if nothing is held: no rule holds, or the policy decided.
	ID string
	// ExpiresAt is when the reservation ends by itself, by the clock of the store.
	ExpiresAt time.Time

	client  *Client
	request *pb.CheckRequest
	settled atomic.Bool
}

// Reserve holds the cost of a request while work is done. It does not call work if the request is refused: look at
// Verdict.Allowed. If work returns nil and has settled nothing itself, what is held is charged. If work
// returns an error, which Reserve then returns, or panics, nothing is charged.
func (c *Client) Reserve(ctx context.Context, request Request, work func(ctx context.Context, held *Held) error) (Verdict, error) {
	held, err := c.reserve(ctx, request)
	if err != nil {
		return Verdict{}, err
	}
	if !held.Verdict.Allowed {
		return held.Verdict, nil
	}
	// The error or the panic of the work is the one to report. Without effect if it was settled.
	defer func() { _ = held.Cancel(ctx) }()
	if err := work(ctx, held); err != nil {
		return held.Verdict, err
	}
	err = held.commit(ctx, nil)
	// A server with its store in memory forgets reservations when it restarts: what the work has done is not lost.
	if status.Code(err) == codes.NotFound {
		err = nil
	}
	return held.Verdict, err
}

func (c *Client) reserve(ctx context.Context, request Request) (*Held, error) {
	held, err := c.hold(ctx, request)
	held.Verdict, err = c.orPolicy(ctx, request, held.Verdict, err)
	return held, err
}

// hold returns what the server holds for a request; with the error of the call it is nothing.
func (c *Client) hold(ctx context.Context, request Request) (*Held, error) {
	message, _, err := encode(request)
	if err != nil {
		return &Held{}, err
	}
	reserve := &pb.ReserveRequest{Request: message}
	if request.Hold > 0 {
		reserve.Ttl = durationpb.New(request.Hold)
	}
	var response *pb.ReserveResponse
	if c.reserving.Add(1) <= maxInFlight {
		response, err = ask(ctx, c, attempts{timeout: c.deadline(), isRequest: true}, c.reservations.Reserve, reserve)
	} else {
		err = c.queue.noRoom()
	}
	c.reserving.Add(-1)
	held := &Held{client: c, request: message}
	if err == nil {
		held.ID, held.ExpiresAt = response.GetReservationId(), response.GetExpiresAt().AsTime()
	}
	held.Verdict, err = toVerdict(response.GetVerdict(), err)
	return held, err
}

// Commit charges the actual cost and returns the rest. If nothing is held, or it was settled, nothing is sent, and
// the error is nil. Without an answer it is repeated once, and then logged: the reservation ends by itself, without
// a charge. A cost that is not valid settles nothing.
func (h *Held) Commit(ctx context.Context, actual uint64) error {
	return h.commit(ctx, &actual)
}

// Extend holds more units, or until hold from now on; zero leaves either as it is. A refusal leaves what is held as it
// was. Without an answer it returns an error whatever the policy is, and is not repeated: that might add twice. If
// nothing is held, nothing is sent.
func (h *Held) Extend(ctx context.Context, cost uint64, hold time.Duration) (Verdict, error) {
	if h.ID == "" {
		return h.Verdict, nil
	}
	extend := &pb.ExtendRequest{ReservationId: h.ID, Cost: &cost}
	if hold > 0 {
		extend.Ttl = durationpb.New(hold)
	}
	response, err := ask(ctx, h.client, attempts{timeout: h.client.deadline()}, h.client.reservations.Extend, extend)
	if err != nil {
		return Verdict{}, err
	}
	h.ExpiresAt = response.GetExpiresAt().AsTime()
	return newVerdict(response.GetVerdict(), Server), nil
}

// Cancel returns all that is held. It is repeated as Commit is.
func (h *Held) Cancel(ctx context.Context) error {
	return h.settle(ctx, func(ctx context.Context) error {
		_, err := h.client.reservations.Cancel(ctx, &pb.CancelRequest{ReservationId: h.ID})
		return err
	})
}

func (h *Held) commit(ctx context.Context, actual *uint64) error {
	return h.settle(ctx, func(ctx context.Context) error {
		// With the request, work that took longer than the hold is charged all the same.
		commit := &pb.CommitRequest{ReservationId: h.ID, Actual: actual, Request: h.request}
		_, err := h.client.reservations.Commit(ctx, commit)
		return err
	})
}

// settle returns the error of a settlement that the server rejects.
func (h *Held) settle(ctx context.Context, do func(context.Context) error) error {
	if h.ID == "" || h.settled.Swap(true) {
		return nil
	}
	// A caller that has gone does not keep its hold.
	err := h.client.call(context.WithoutCancel(ctx), h.client.twice(), do)
	if err == nil {
		return nil
	}
	h.client.warn(&h.client.settleLogged, time.Second, "reservation not settled", "error", err)
	if isRejection(err) {
		if status.Code(err) == codes.InvalidArgument {
			h.settled.Store(false)
		}
		return err
	}
	return nil
}
