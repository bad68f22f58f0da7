// Package rlaas is a client of rlaas, a rate limiting service: it asks the server whether a request may pass.
//
// A limited route of net/http takes three lines:
//
//	limits := rlaas.MustNew("127.0.0.1:50051")
//	http.Handle("/", limits.Middleware(rlaas.ByAddress(0))(handler))
//	log.Fatal(http.ListenAndServe(":8000", nil))
//
// Without an answer of the server a [Policy] decides, by default [Allow]; in an overload another one, by default
// [Deny]. Errors of this package are mistakes of the program, such as a wrong token, whatever the policies are; their
// code is that of [status.Code].
package rlaas

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
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
	address      string
	limits       pb.RateLimitServiceClient
	reservations pb.ReservationServiceClient
	credentials  metadata.MD
	refusals     *refusals
	throttle     throttle
	queue        queue
	// Set once a call has ended: later ones need no time to connect.
	hasCalled  atomic.Bool
	reserving  atomic.Int64
	unanswered atomic.Uint64
	// Time at which this program was late, in nanoseconds, and those of the last log lines.
	wasLate, checkLogged, settleLogged, keyLogged atomic.Int64
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
	// AtLeast takes what is there: any number of units from it to Cost will do, and [Verdict.Taken] says how many.
	AtLeast uint64
	// DryRun decides without taking units.
	DryRun bool
	// ID is the idempotency key, up to 64 bytes: the server takes the units of the same request with the same id once.
	ID string
	// Hold is the longest time of a reservation. Zero is that of the rules. Ignored by Check and Report.
	Hold time.Duration
}

// Units returns a cost for [Request].
func Units(units uint64) *uint64 { return &units }

// Policy decides a request that the server has not decided: it returns true to allow it.
type Policy func(ctx context.Context, request Request, err error) bool

// Allow is the default policy: while the server is away nothing is limited.
func Allow(context.Context, Request, error) bool { return true }

// Deny refuses requests: while the server is away so are limited routes.
func Deny(context.Context, Request, error) bool { return false }

// Check decides a request, before the deadline of ctx. It waits while 128 others are in flight, for a second at most,
// and then has the timeout of the client. If the context is cancelled the result is context.Canceled.
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
	response, err := ask(ctx, c, c.twice(), c.limits.Report, &pb.ReportRequest{Request: message})
	verdict, err := toVerdict(response.GetVerdict(), err)
	return c.orPolicy(ctx, request, verdict, err)
}

// Unanswered returns the number of requests that the policy decided for want of an answer, for a metric: an [Allow]
// that is not watched hides that nothing is limited.
func (c *Client) Unanswered() uint64 { return c.unanswered.Load() }

// Close closes the channel, unless it is that of WithConn.
func (c *Client) Close() error {
	if own, ok := c.conn.(*grpc.ClientConn); ok {
		return own.Close()
	}
	return nil
}

// check returns the verdict of the server or of the cache, or the error of the call.
func (c *Client) check(ctx context.Context, request Request) (Verdict, error) {
	message, encoded, err := encode(request)
	if err != nil {
		return Verdict{}, err
	}
	// A request with an id may be a retry whose units were taken; one that takes nothing reads the current state.
	takes := !message.GetDryRun() && (message.Cost == nil || *message.Cost > 0 || len(message.GetCosts()) > 0)
	key, found, remembers := string(encoded), refusal{}, takes && request.ID == ""
	if remembers {
		if found = c.refusals.get(key); c.refusals.now().Before(found.holdsUntil) {
			return c.refusals.read(found), nil
		}
		if c.retries > 0 {
			message.RequestId = rand.Text()
		}
	} else {
		// Not decided by the refusal of others.
		key += "\x00"
	}
	made := c.queue.enter(ctx, key, found.askedAt, c.deadline()-c.timeout)
	switch {
	case made.err != nil:
		return Verdict{}, made.err
	case made.refused != nil:
		return c.refusals.read(*made.refused), nil
	}
	c.yield()
	askedAt := c.refusals.now()
	verdict, err := c.send(ctx, message)
	var refused *refusal
	if err == nil && remembers {
		refused = c.refusals.insert(key, askedAt, verdict)
	}
	c.queue.leave(key, made.isProbe, refused)
	return verdict, err
}

// send calls Check.
func (c *Client) send(ctx context.Context, message *pb.CheckRequest) (Verdict, error) {
	may := attempts{timeout: c.deadline(), isRequest: true}
	// A call that is not to be repeated has the whole timeout.
	if c.throttle.hasTokens() {
		may.retries = c.retries
	}
	return toVerdict(ask(ctx, c, may, c.limits.Check, message))
}

// encode returns the message of a request, and its bytes, which are the same for the same request whatever its id.
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
		Costs:      request.Costs,
		AtLeast:    request.AtLeast,
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		err = status.Error(codes.InvalidArgument, "costs must have names of UTF-8")
	}
	message.RequestId = request.ID
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

// byPolicy decides a request without an answer, or in an overload.
func (c *Client) byPolicy(ctx context.Context, request Request, err error) Verdict {
	reason, decide, answeredBy := "NO_ANSWER", c.onNoAnswer, ByPolicy
	if err == errOverload || reasonOf(err) == "OVERLOADED" {
		reason, decide = "OVERLOADED", c.onOverload
	} else {
		c.unanswered.Add(1)
	}
	allowed := decide(ctx, request, err)
	c.warn(&c.checkLogged, time.Minute, "rate limit check failed", "address", c.address,
		"error", explanations.Replace(status.Convert(err).Message()), "allowed", allowed, "unanswered", c.Unanswered())
	if reason == "OVERLOADED" && err != errOverload && !allowed {
		answeredBy = Server
	}
	return undecided(allowed, reason, answeredBy)
}

// toVerdict returns the verdict that a call has, or its error.
func toVerdict(response *pb.CheckResponse, err error) (Verdict, error) {
	if err == nil {
		return newVerdict(response, Server), nil
	}
	switch reason := reasonOf(err); reason {
	case "NO_RULE":
		return newVerdict(&pb.CheckResponse{Reason: pb.CheckResponse_NO_RULE}, Server), nil
	case "STORE_UNAVAILABLE", "NOT_READY":
		return undecided(false, reason, Server), nil
	}
	return Verdict{}, err
}

var (
	// errOverload is the error of a request of which this program has more than it can do.
	errOverload = status.Error(codes.ResourceExhausted, "too many calls wait in this program, or it is too busy to read answers")
	// errImpatient is the error of a call that its caller has ended, or gave less time than the timeout.
	errImpatient = status.Error(codes.DeadlineExceeded, "no response before the end of the context")
)

// reasonOf returns the reason that the server gives for an error.
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "rlaas" {
			return info.GetReason()
		}
	}
	return ""
}

// isAnswer returns true if the server has answered a call. UNAVAILABLE without a reason is no answer: proxies and gRPC
// itself say it, too.
func isAnswer(err error) bool {
	return err == nil || isRejection(err) || status.Code(err) == codes.ResourceExhausted || reasonOf(err) != ""
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

// explanations say why there is no connection, in the words of the command line: gRPC has those of TLS and of sockets.
var explanations = strings.NewReplacer(
	`connection error: desc = "`, "", `"`, "",
	"transport: Error while dialing", "no server (is `rlaas serve` running?)",
	"no children to pick from", "no server: the name has no address",
	"error reading server preface", "does not answer gRPC: it must be an address of server.listen, with https:// if it requires TLS, "+
		"and a certificate (WithTLS) if it requires one",
	"transport: authentication handshake failed: tls: first record does not look like a TLS handshake", "does not speak TLS: try http://",
	"transport: authentication handshake failed: tls: failed to verify certificate: x509", "certificate not trusted (WithTLS)",
)

// warn logs, but not again within the interval.
func (c *Client) warn(last *atomic.Int64, interval time.Duration, message string, fields ...any) {
	now, before := time.Now().UnixNano(), last.Load()
	if now-before >= int64(interval) && last.CompareAndSwap(before, now) {
		slog.Warn(message, fields...)
	}
}
