package rlaas

import (
	"log/slog"
	"net/http"
	"sync"

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
}

// Route limits requests, as [Client.Middleware] does, with more settings.
func (c *Client) Route(route Route) func(http.Handler) http.Handler {
	if route.Key == nil {
		route.Key = ByAddress(0)
	}
	if route.Headers == nil {
		route.Headers = DraftHeaders
	}
	limit := &routeLimit{Route: route, client: c}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { limit.serve(w, r, next) })
	}
}

// routeLimit is the limit of a route.
type routeLimit struct {
	Route
	client *Client
	logged sync.Once
}

func (l *routeLimit) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if l.Skip != nil && l.Skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	request, err := l.request(r)
	verdict, rejected := l.client.admit(r.Context(), request, err, l.client.check)
	if l.lacksRule(verdict, request) {
		verdict, rejected = Verdict{}, &rejection{kind: internal, detail: "internal error"}
	}
	for name, values := range l.Headers(verdict) {
		w.Header()[name] = append(w.Header()[name], values...)
	}
	switch {
	case rejected == nil:
		next.ServeHTTP(w, r)
	case l.Handler == nil || verdict.Response == nil:
		rejected.write(w)
	default:
		rejected.setRetryAfter(w)
		l.Handler(w, r, rejected.kind.status, verdict)
	}
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

// lacksRule returns true if the rule of the route is missing where a request is allowed, and it is not to pass.
func (l *routeLimit) lacksRule(verdict Verdict, request *Request) bool {
	if l.Rule == "" || !verdict.Allowed || verdict.Response.GetSource() != pb.CheckResponse_STORE {
		return false
	}
	var others []string
	for _, decision := range verdict.Response.GetDecisions() {
		if decision.GetRule() == l.Rule {
			return false
		}
		others = append(others, decision.GetRule())
	}
	l.logged.Do(func() {
		slog.Error("a rule does not limit its route", "rule", l.Rule, "resource", request.Resource, "decided", others)
	})
	return l.Strict
}
