package rlaas

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "rlaas.example/clients/go/ratelimitv1"
)

// AnsweredBy is the origin of a verdict.
type AnsweredBy string

const (
	// Server means that the server answered.
	Server AnsweredBy = "server"
	// Cache means that an earlier refusal of the same request still holds.
	Cache AnsweredBy = "cache"
	// ByPolicy means that a policy decided: for want of an answer, or in an overload.
	ByPolicy AnsweredBy = "policy"
)

// Verdict is the outcome of a request.
type Verdict struct {
	// Allowed is true if the request may pass.
	Allowed bool
	// AnsweredBy is the origin of the verdict.
	AnsweredBy AnsweredBy
	// Rule is the name of the deciding rule; empty if there is none.
	Rule string
	// Limit is the number of units per window of that rule.
	Limit int64
	// Remaining is the number of units left; below 0 is debt.
	Remaining int64
	// ResetAfter is the time until the whole limit is available again.
	ResetAfter time.Duration
	// Reason is why the request is allowed or refused: the name of a [pb.CheckResponse_Reason] such as OVER_LIMIT. If no
	// rule decided: NO_ANSWER, OVERLOADED (the server, or this program), STORE_UNAVAILABLE, or NOT_READY (the server
	// does not know its projects or keys yet).
	Reason string
	// Response is that of the server, or an equivalent one, with the decision of each rule.
	Response *pb.CheckResponse
}

// Taken returns the units that the caller of a request with AtLeast may use: 0 on a refusal; false without AtLeast, and
// if no server has decided.
func (v Verdict) Taken() (uint64, bool) {
	return v.Response.GetTaken(), v.Response != nil && v.Response.Taken != nil
}

// RetryAfter returns the time after which a refused request passes; false if it is allowed, or waiting does not
// help.
func (v Verdict) RetryAfter() (time.Duration, bool) {
	wait := v.Response.GetRetryAfter()
	if v.Allowed || wait == nil {
		return 0, false
	}
	return wait.AsDuration(), true
}

func newVerdict(response *pb.CheckResponse, answeredBy AnsweredBy) Verdict {
	return Verdict{
		Allowed:    response.GetAllowed(),
		AnsweredBy: answeredBy,
		Rule:       response.GetRule(),
		Limit:      response.GetLimit(),
		Remaining:  response.GetRemaining(),
		ResetAfter: response.GetResetAfter().AsDuration(),
		Reason:     response.GetReason().String(),
		Response:   response,
	}
}

// undecided returns the verdict on a request that no rule has decided, as a server without its store would give it.
func undecided(allowed bool, reason string, answeredBy AnsweredBy) Verdict {
	response := &pb.CheckResponse{Allowed: allowed, Reason: pb.CheckResponse_STORE_UNAVAILABLE, Source: pb.CheckResponse_FAIL_OPEN}
	if !allowed {
		response.Source = pb.CheckResponse_FAIL_CLOSED
		response.RetryAfter = durationpb.New(time.Second)
	}
	verdict := newVerdict(response, answeredBy)
	verdict.Reason = reason
	return verdict
}

// isUndecided reports whether the request is refused although no rule has decided it.
func (v Verdict) isUndecided() bool {
	return v.Rule == "" && v.Response.GetSource() == pb.CheckResponse_FAIL_CLOSED
}
