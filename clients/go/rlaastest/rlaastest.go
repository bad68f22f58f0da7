// Package rlaastest has clients for the tests of programs, without a server:
//
//	service := rlaastest.Count(rlaastest.Limit{Rule: "search", Units: 2, Window: time.Minute})
//	limits := service.Client()
//
// They are clients like any other, with all their settings, and ask a [Service] in the same program.
package rlaastest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	rlaas "rlaas.example/clients/go"
	pb "rlaas.example/clients/go/ratelimitv1"
)

// Limit is a rule of a test: units of each user in a window, which begins with a first request. Resource is that of
// the requests that it limits, or its beginning with an asterisk; by default all are limited.
type Limit struct {
	Rule     string
	Units    int64
	Window   time.Duration
	Resource string
}

// Service is what clients of tests ask. It allows what no limit matches, and all limits hold reservations. Its time
// stands still until Advance moves it. Report and Extend are not there.
type Service struct {
	grpc.ClientConnInterface
	limits   []Limit
	refuses  bool
	isAway   atomic.Bool
	now      atomic.Int64
	mutex    sync.Mutex
	windows  map[[2]string]*window
	held     map[string][]share
	requests []*pb.CheckRequest
}

// window has its beginning and the units that a user has used since.
type window struct {
	since, used int64
}

// share is what a request takes from a limit, with its decision.
type share struct {
	*window
	cost     int64
	decision *pb.RuleDecision
}

// Allow returns a service that allows all requests.
func Allow() *Service { return Count() }

// Count returns a service that counts in memory.
func Count(limits ...Limit) *Service {
	return &Service{limits: limits, windows: make(map[[2]string]*window), held: make(map[string][]share)}
}

// Refuse returns a service that refuses all requests by a rule.
func Refuse(rule string, retryAfter time.Duration) *Service {
	service := Count(Limit{Rule: rule, Units: 1 << 32, Window: retryAfter})
	service.refuses = true
	return service
}

// Away returns a service that does not answer.
func Away() *Service {
	service := Count()
	service.SetAway(true)
	return service
}

// Client returns a client that asks the service, and panics if an option is not valid. It remembers no refusals
// without rlaas.WithMaxAge.
func (s *Service) Client(options ...rlaas.Option) *rlaas.Client {
	return rlaas.MustNew("", append([]rlaas.Option{rlaas.WithConn(s), rlaas.WithMaxAge(0)}, options...)...)
}

// SetAway sets whether the service answers.
func (s *Service) SetAway(isAway bool) { s.isAway.Store(isAway) }

// Advance moves the time.
func (s *Service) Advance(by time.Duration) { s.now.Add(int64(by)) }

// Requests returns those that the service was asked.
func (s *Service) Requests() []*pb.CheckRequest {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Clone(s.requests)
}

// Invoke answers a call. It implements grpc.ClientConnInterface.
func (s *Service) Invoke(_ context.Context, method string, request, response any, _ ...grpc.CallOption) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.isAway.Load() {
		return status.Error(codes.Unavailable, "the service of the test is away")
	}
	switch request := request.(type) {
	case *pb.CheckRequest:
		verdict, _ := s.decide(request)
		proto.Merge(response.(*pb.CheckResponse), verdict)
	case *pb.ReserveRequest:
		verdict, shares := s.decide(request.GetRequest())
		id := fmt.Sprintf("reservation-%d", len(s.requests))
		s.held[id] = shares
		proto.Merge(response.(*pb.ReserveResponse), &pb.ReserveResponse{Verdict: verdict, ReservationId: id})
	case *pb.CommitRequest:
		s.settle(request.GetReservationId(), request.Actual)
	case *pb.CancelRequest:
		s.settle(request.GetReservationId(), rlaas.Units(0))
	default:
		return status.Error(codes.Unimplemented, "the service of a test has no "+method)
	}
	return nil
}

// settle charges the actual cost, by default what is held.
func (s *Service) settle(id string, actual *uint64) {
	for _, share := range s.held[id] {
		if actual != nil {
			share.used = max(0, share.used-share.cost+int64(*actual))
		}
	}
	delete(s.held, id)
}

// decide takes the units of all limits that match, or of none, and returns what it has taken.
func (s *Service) decide(request *pb.CheckRequest) (*pb.CheckResponse, []share) {
	s.requests = append(s.requests, proto.CloneOf(request))
	response := &pb.CheckResponse{Allowed: true, Reason: pb.CheckResponse_NO_RULE}
	var windows []*window
	var limits []Limit
	cost := int64(1)
	if request.Cost != nil {
		cost = int64(*request.Cost)
	}
	for _, limit := range s.limits {
		prefix, isPrefix := strings.CutSuffix(limit.Resource, "*")
		if isPrefix && strings.HasPrefix(request.GetResource(), prefix) || prefix == "" || prefix == request.GetResource() {
			current := s.window(limit, request.GetUserId())
			limits, windows = append(limits, limit), append(windows, current)
			if request.GetAtLeast() > 0 {
				cost = max(min(cost, limit.Units-current.used), int64(request.GetAtLeast()))
			}
		}
	}
	var shares []share
	for index, limit := range limits {
		share := s.share(limit, windows[index], cost)
		response.Allowed = response.Allowed && share.decision.Allowed
		shares, response.Decisions = append(shares, share), append(response.Decisions, share.decision)
	}
	if request.GetAtLeast() > 0 {
		response.Taken = rlaas.Units(0)
		if response.Allowed {
			*response.Taken = uint64(cost)
		}
	}
	if !response.Allowed || request.GetDryRun() {
		shares = nil
	}
	for _, share := range shares {
		share.used += share.cost
		share.decision.Remaining -= share.cost
	}
	for index, decision := range response.Decisions {
		// The first that refuses, or else the first.
		if index == 0 || response.Reason == pb.CheckResponse_WITHIN_LIMIT && !decision.Allowed {
			response.Rule, response.Reason, response.Source = decision.Rule, decision.Reason, pb.CheckResponse_STORE
			response.Limit, response.Remaining = decision.Limit, decision.Remaining
			response.RetryAfter, response.ResetAfter = decision.RetryAfter, decision.ResetAfter
		}
	}
	return response, shares
}

// window returns the window that runs.
func (s *Service) window(limit Limit, user string) *window {
	key := [2]string{limit.Rule, user}
	current := s.windows[key]
	now := s.now.Load()
	if current == nil || now-current.since >= int64(limit.Window) {
		current = &window{since: now}
		s.windows[key] = current
	}
	if s.refuses {
		current.used = limit.Units
	}
	return current
}

// share returns what a request takes if all limits allow it.
func (s *Service) share(limit Limit, current *window, cost int64) share {
	end := time.Duration(current.since + int64(limit.Window) - s.now.Load())
	decision := &pb.RuleDecision{
		Rule: limit.Rule, Allowed: current.used+cost <= limit.Units, Reason: pb.CheckResponse_WITHIN_LIMIT,
		Limit: limit.Units, Remaining: limit.Units - current.used,
		Held: uint64(cost), Window: durationpb.New(limit.Window), ResetAfter: durationpb.New(end),
	}
	if !decision.Allowed {
		decision.Reason, decision.RetryAfter = pb.CheckResponse_OVER_LIMIT, decision.ResetAfter
	}
	return share{current, cost, decision}
}
