package rlaas

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	pb "rlaas.example/clients/go/ratelimitv1"
)

// Route is how requests are limited: those of one route, or all of a program. Zero values are the defaults.
type Route struct {
	// Key is what the requests are limited by, by default [ByAddress] without proxies.
	Key KeyFunc
	// Rule is the name of the rule that is to limit these requests. The first decision without it is logged.
	Rule string
	// Strict answers the requests that are decided without Rule with status 500.
	Strict bool
	// Resource is that of all requests. By default it is that of the key.
	Resource string
	// Cost is the units of requests whose key has no cost, by default 1.
	Cost uint64
	// Skip exempts the requests for which it returns true.
	Skip func(*http.Request) bool
	// Headers are those of limits in responses: [DraftHeaders], which is the default, [LegacyHeaders] or [NoHeaders].
	Headers func(Verdict) http.Header
	// Handler answers refused requests, with this status. The headers are set already.
	Handler func(w http.ResponseWriter, r *http.Request, status int, verdict Verdict)
	// Count has only failures counted, or only successes, by the status of the response: the units are reserved, and
	// then charged or returned. Rule must be set, and reservable: else the status is 500. Handlers flush and hijack by
	// http.ResponseController.
	Count Outcome
	// Wait is how long requests wait in place of a refusal, if they can be allowed by then. Those with one key wait in
	// turn, 1,000 of a route at most.
	Wait time.Duration
}

// Outcome is the kind of responses that are counted. By default all are.
type Outcome string

const (
	// Failures have a status of at least 400. A panic is one, too.
	Failures Outcome = "failures"
	// Successes are all others.
	Successes Outcome = "successes"
)

// Route limits requests, as [Client.Middleware] does, with more settings. It panics if they are not valid.
func (c *Client) Route(route Route) func(http.Handler) http.Handler {
	if route.Key == nil {
		route.Key = ByAddress(0)
	}
	if route.Headers == nil {
		route.Headers = DraftHeaders
	}
	if route.Count != "" && (route.Rule == "" || route.Count != Failures && route.Count != Successes) {
		panic("rlaas: Count must be Failures or Successes, with the name of a reservable Rule")
	}
	limit := &routeLimit{Route: route, client: c, turns: turns{byKey: make(map[string]*turn)}}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { limit.serve(w, r, next) })
	}
}

// routeLimit is the limit of a route.
type routeLimit struct {
	Route
	client *Client
	turns  turns
	logged sync.Once
}

func (l *routeLimit) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if l.Skip != nil && l.Skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	verdict, held, rejected := l.decide(r)
	for name, values := range l.Headers(verdict) {
		w.Header()[name] = append(w.Header()[name], values...)
	}
	switch {
	case rejected == nil && held.ID != "":
		l.serveAndSettle(w, r, next, held)
	case rejected == nil:
		next.ServeHTTP(w, r)
	case l.Handler == nil || verdict.Response == nil:
		rejected.write(w)
	default:
		rejected.setRetryAfter(w)
		l.Handler(w, r, rejected.kind.status, verdict)
	}
}

// decide returns the verdict on a request with what is held for it, and its rejection or nil.
func (l *routeLimit) decide(r *http.Request) (Verdict, *Held, *rejection) {
	request, err := l.request(r)
	held := &Held{}
	check := l.client.check
	if l.Count != "" {
		check = func(ctx context.Context, request Request) (Verdict, error) {
			made, err := l.client.hold(ctx, request)
			held = made
			return made.Verdict, err
		}
	}
	attempt := func() (Verdict, *rejection) { return l.client.admit(r.Context(), request, err, check) }
	verdict, rejected := Verdict{}, (*rejection)(nil)
	if l.Wait > 0 && request != nil {
		verdict, rejected = l.turns.decide(r.Context(), l.Wait, request.UserID+"\x00"+request.Resource, attempt)
	} else {
		verdict, rejected = attempt()
	}
	if l.isMistaken(verdict, request) {
		_ = held.Cancel(r.Context())
		return Verdict{}, held, &rejection{kind: internal, detail: "internal error"}
	}
	return verdict, held, rejected
}

// serveAndSettle charges what is held if the response is of the kind that is counted.
func (l *routeLimit) serveAndSettle(w http.ResponseWriter, r *http.Request, next http.Handler, held *Held) {
	recorder := &statusRecorder{ResponseWriter: w}
	isCounted := l.Count == Failures
	// Errors are logged.
	defer func() {
		if isCounted {
			_ = held.commit(r.Context(), nil)
		} else {
			_ = held.Cancel(r.Context())
		}
	}()
	next.ServeHTTP(recorder, r)
	isCounted = isCounted == (recorder.last() >= http.StatusBadRequest)
}

// statusRecorder knows the status of its response.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (s *statusRecorder) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// last returns the status. A framework, such as gin, may have written to its own writer.
func (s *statusRecorder) last() int {
	if own, ok := s.ResponseWriter.(interface{ Status() int }); ok && s.status == 0 {
		return own.Status()
	}
	return s.status
}

// request returns what the key says, with the settings of the route.
func (l *routeLimit) request(r *http.Request) (*Request, error) {
	found, err := l.Key(r)
	if found == nil || err != nil {
		return nil, err
	}
	request := *found
	if l.Resource != "" {
		request.Resource = l.Resource
	}
	if request.Cost == nil && l.Cost > 0 {
		request.Cost = &l.Cost
	}
	return &request, nil
}

// isMistaken returns true if a request is not to pass, although it is allowed: its rule has not decided, or can't count
// outcomes.
func (l *routeLimit) isMistaken(verdict Verdict, request *Request) bool {
	if l.Rule == "" || !verdict.Allowed || verdict.Response.GetSource() != pb.CheckResponse_STORE {
		return false
	}
	problem, others := "a rule does not limit its route", []string{}
	for _, decision := range verdict.Response.GetDecisions() {
		if decision.GetRule() != l.Rule {
			others = append(others, decision.GetRule())
		} else if l.Count == "" || decision.GetHeld() > 0 || decision.GetReason() != pb.CheckResponse_WITHIN_LIMIT {
			return false
		} else {
			problem = "a rule must be reservable to count " + string(l.Count)
		}
	}
	l.logged.Do(func() { slog.Error(problem, "rule", l.Rule, "resource", request.Resource, "others", others) })
	return l.Strict || l.Count != ""
}
