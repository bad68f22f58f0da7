// Package rlaas is a client of rlaas, a rate limiting service: it asks the server whether a request may pass.
//
// A limited route of net/http takes three lines:
//
//	limits := rlaas.MustNew("127.0.0.1:50051")
//	http.Handle("/", limits.Middleware(rlaas.ByAddress(0))(handler))
//	log.Fatal(http.ListenAndServe(":8000", nil))
//
// Without an answer of the server a [Policy] decides, by default [Allow]. Errors of this package are mistakes of
// the program, such as a wrong token, whatever the policy is; their code is that of [status.Code].
package rlaas

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "rlaas.example/clients/go/ratelimitv1"
)

// Client has one channel to the server, which any number of goroutines share. It reconnects by itself.
type Client struct {
	settings
	conn         *grpc.ClientConn
	limits       pb.RateLimitServiceClient
	reservations pb.ReservationServiceClient
	credentials  metadata.MD
	refusals     *refusals
	throttle     throttle
	// Set once a call has ended: later ones need no time to connect.
	hasCalled  atomic.Bool
	unanswered atomic.Uint64
	// Times of the last log lines, in nanoseconds.
	checkLogged, settleLogged, keyLogged atomic.Int64
}

// Request is a request to be decided. The rules of the server match its parts.
type Request struct {
	// UserID is the user or client: 1 to 1024 bytes.
	UserID string
	// Resource is what the request is for, such as a path: up to 1024 bytes.
	Resource string
	// Attributes are further properties: up to 32, with names of 1 to 64 bytes and values of up to 1024.
	Attributes map[string]string
	// Cost is the number of units to take; nil is 1, and 0 only looks. See [Units].
	Cost *uint64
	// Costs are the units to take from single rules, by name, in the place of Cost.
	Costs map[string]uint64
	// DryRun decides without taking units.
	DryRun bool
	// ID is the idempotency key, up to 64 bytes: the server takes the units of the same request with the same id once.
	ID string
	// Hold is the longest time of a reservation. Zero is that of the rules. Ignored by Check and Report.
	Hold time.Duration
}

// Units returns a cost for [Request].
func Units(units uint64) *uint64 { return &units }

// Policy decides a request that the server has not answered: it returns true to allow it.
type Policy func(ctx context.Context, request Request, err error) bool

// Allow is the default policy: while the server is away nothing is limited.
func Allow(context.Context, Request, error) bool { return true }

// Deny refuses requests without an answer: while the server is away so are limited routes.
func Deny(context.Context, Request, error) bool { return false }

// Check decides a request, within the timeout of the client and before the deadline of ctx. If the context is
// cancelled the result is context.Canceled.
func (c *Client) Check(ctx context.Context, request Request) (Verdict, error) {
	verdict, err := c.check(ctx, request)
	return c.orPolicy(ctx, request, verdict, err)
}

// Report counts a cost that has arisen, whatever is left, in rules with post_paid or reservable.
func (c *Client) Report(ctx context.Context, request Request) (Verdict, error) {
	message, _, err := encode(request)
	if err != nil {
		return Verdict{}, err
	}
	if message.RequestId == "" {
		message.RequestId = rand.Text()
	}
	var response *pb.ReportResponse
	err = c.callTwice(ctx, func(ctx context.Context) (err error) {
		response, err = c.limits.Report(ctx, &pb.ReportRequest{Request: message})
		return err
	})
	if err != nil {
		verdict, err := withoutResponse(err)
		return c.orPolicy(ctx, request, verdict, err)
	}
	return newVerdict(response.GetVerdict(), Server), nil
}

// Unanswered returns the number of requests that the policy decided, for a metric: an [Allow] that is not watched
// hides that nothing is limited.
func (c *Client) Unanswered() uint64 { return c.unanswered.Load() }

// Close closes the channel.
func (c *Client) Close() error { return c.conn.Close() }

// check returns the verdict of the server or of the cache, or the error of the call.
func (c *Client) check(ctx context.Context, request Request) (Verdict, error) {
	message, encoded, err := encode(request)
	if err != nil {
		return Verdict{}, err
	}
	// A request with an id may be a retry whose units were taken; one that takes nothing reads the current state.
	takes := !message.GetDryRun() && (message.Cost == nil || *message.Cost > 0 || len(message.GetCosts()) > 0)
	key := ""
	if takes && message.RequestId == "" {
		key = string(encoded)
		if verdict, ok := c.refusals.get(key); ok {
			return verdict, nil
		}
		if c.retries > 0 {
			message.RequestId = rand.Text()
		}
	}
	askedAt := c.refusals.now()
	var response *pb.CheckResponse
	may := attempts{timeout: c.deadline(), mayRepeat: c.throttle.mayRepeat}
	// A call that is not to be repeated has the whole timeout.
	if c.throttle.hasTokens() {
		may.retries = c.retries
	}
	err = c.call(ctx, may, func(ctx context.Context) (err error) {
		response, err = c.limits.Check(ctx, message)
		return err
	})
	if err != nil {
		return withoutResponse(err)
	}
	verdict := newVerdict(response, Server)
	if key != "" {
		c.refusals.insert(key, askedAt, verdict)
	}
	return verdict, nil
}

// encode returns the message of a request, and its bytes, which are the same for the same request.
func encode(request Request) (*pb.CheckRequest, []byte, error) {
	if err := checkTexts(request); err != nil {
		return nil, nil, err
	}
	message := &pb.CheckRequest{
		UserId:     request.UserID,
		Resource:   request.Resource,
		Attributes: request.Attributes,
		Cost:       request.Cost,
		DryRun:     request.DryRun,
		RequestId:  request.ID,
		Costs:      request.Costs,
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		err = status.Error(codes.InvalidArgument, "costs must have names of UTF-8")
	}
	return message, encoded, err
}

// checkTexts returns the error of the server for a text that is not valid. Sent, a long one could be late, and one
// that is not UTF-8 fails: they must not get the verdict of the policy.
func checkTexts(request Request) error {
	isText := func(text string, least, most int) bool {
		return least <= len(text) && len(text) <= most && utf8.ValidString(text)
	}
	problem := ""
	switch {
	case !isText(request.UserID, 1, 1024):
		problem = "user_id must be 1 to 1024 bytes of UTF-8"
	case !isText(request.Resource, 0, 1024):
		problem = "resource must be at most 1024 bytes of UTF-8"
	case !isText(request.ID, 0, 64):
		problem = "request_id must be at most 64 bytes of UTF-8"
	case len(request.Attributes) > 32:
		problem = "attributes must have at most 32 entries"
	}
	for name, value := range request.Attributes {
		if !isText(name, 1, 64) || !isText(value, 0, 1024) {
			problem = "attributes must have names of 1 to 64 and values of at most 1024 bytes of UTF-8"
		}
	}
	if problem == "" {
		return nil
	}
	return status.Error(codes.InvalidArgument, problem)
}

// orPolicy returns the verdict of the policy in the place of an error that is no mistake of the program.
func (c *Client) orPolicy(ctx context.Context, request Request, verdict Verdict, err error) (Verdict, error) {
	switch {
	case err == nil || isRejection(err):
		return verdict, err
	case errors.Is(ctx.Err(), context.Canceled):
		return Verdict{}, fmt.Errorf("rlaas: %w", context.Canceled)
	}
	return c.byPolicy(ctx, request, err), nil
}

func (c *Client) byPolicy(ctx context.Context, request Request, err error) Verdict {
	unanswered := c.unanswered.Add(1)
	allowed := c.onNoAnswer(ctx, request, err)
	c.warn(&c.checkLogged, "rate limit check failed", "error", err, "allowed", allowed, "unanswered", unanswered)
	return policyVerdict(allowed)
}

// withoutResponse returns the verdict or the error of a call that failed.
func withoutResponse(err error) (Verdict, error) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "rlaas" && info.GetReason() == "NO_RULE" {
			return newVerdict(&pb.CheckResponse{Reason: pb.CheckResponse_NO_RULE}, Server), nil
		}
	}
	return Verdict{}, err
}

// isRejection returns true if the server answered, and would answer the same again.
func isRejection(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented, codes.NotFound,
		codes.FailedPrecondition, codes.OutOfRange:
		return true
	}
	return false
}

// warn logs at most once a second.
func (c *Client) warn(last *atomic.Int64, message string, fields ...any) {
	now, before := time.Now().UnixNano(), last.Load()
	if now-before >= int64(time.Second) && last.CompareAndSwap(before, now) {
		slog.Warn(message, fields...)
	}
}
