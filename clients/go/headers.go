package rlaas

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "rlaas.example/clients/go/ratelimitv1"
)

// DraftHeaders returns RateLimit-Policy with all rules, and RateLimit with those that agree with the verdict.
//
// Source: draft-ietf-httpapi-ratelimit-headers-11, sections 3 and 4; RFC 9651, 3.3.3 (strings).
func DraftHeaders(verdict Verdict) http.Header {
	var policies, limits []string
	for _, decision := range limitingRules(verdict) {
		name := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(policyName(decision.GetRule())) + `"`
		policy := fmt.Sprintf("%s;q=%d", name, max(decision.GetLimit(), 0))
		if window := decision.GetWindow(); window.GetSeconds() > 0 && window.GetNanos() == 0 {
			policy += fmt.Sprintf(";w=%d", window.GetSeconds())
		}
		if decision.GetAlgorithm() == pb.Algorithm_CONCURRENCY {
			policy += `;qu="concurrent-requests"`
		}
		policies = append(policies, policy)
		isCounted := !decision.GetAllowed() || decision.GetReason() != pb.CheckResponse_STORE_UNAVAILABLE
		if !isCounted || decision.GetAllowed() != verdict.Allowed {
			continue
		}
		limit := fmt.Sprintf("%s;r=%d", name, max(decision.GetRemaining(), 0))
		reset := cmp.Or(decision.GetRetryAfter(), decision.GetResetAfter())
		// A ban does not end with time.
		if reset != nil && decision.GetReason() != pb.CheckResponse_BANNED {
			limit += fmt.Sprintf(";t=%d", wholeSeconds(reset))
		}
		limits = append(limits, limit)
	}
	headers := http.Header{}
	if len(policies) > 0 {
		headers.Set("RateLimit-Policy", strings.Join(policies, ", "))
	}
	if len(limits) > 0 {
		headers.Set("RateLimit", strings.Join(limits, ", "))
	}
	return headers
}

// LegacyHeaders returns RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset of the rule that decided.
func LegacyHeaders(verdict Verdict) http.Header {
	headers := http.Header{}
	if verdict.Rule == "" || verdict.Reason == pb.CheckResponse_UNLIMITED.String() {
		return headers
	}
	// Not below what can remain, which a burst may be.
	headers.Set("RateLimit-Limit", fmt.Sprint(max(verdict.Limit, verdict.Remaining)))
	headers.Set("RateLimit-Remaining", fmt.Sprint(max(verdict.Remaining, 0)))
	if reset := cmp.Or(verdict.Response.GetRetryAfter(), verdict.Response.GetResetAfter()); reset != nil {
		headers.Set("RateLimit-Reset", fmt.Sprint(wholeSeconds(reset)))
	}
	return headers
}

// NoHeaders returns none. A refusal has Retry-After all the same.
func NoHeaders(Verdict) http.Header { return nil }

// overLimit returns the rejection of a request that a limit refuses.
func overLimit(verdict Verdict) *rejection {
	rejected := &rejection{kind: limited, detail: "waiting does not help", policies: []string{}}
	if wait := verdict.Response.GetRetryAfter(); wait != nil {
		rejected.retryAfter = wait
		seconds, unit := wholeSeconds(wait), "seconds"
		if seconds == 1 {
			unit = "second"
		}
		rejected.detail = fmt.Sprintf("try again after %d %s", seconds, unit)
	}
	for _, decision := range limitingRules(verdict) {
		if !decision.GetAllowed() {
			rejected.policies = append(rejected.policies, policyName(decision.GetRule()))
		}
	}
	return rejected
}

// limitingRules returns the decisions of the enforced rules, except those without a limit.
func limitingRules(verdict Verdict) []*pb.RuleDecision {
	var rules []*pb.RuleDecision
	for _, decision := range verdict.Response.GetDecisions() {
		if !decision.GetShadow() && decision.GetReason() != pb.CheckResponse_UNLIMITED {
			rules = append(rules, decision)
		}
	}
	return rules
}

// policyName returns the name of a rule for a structured field: all but visible ASCII is percent-encoded.
func policyName(rule string) string {
	var name strings.Builder
	for _, char := range []byte(rule) {
		if char == '%' || char < ' ' || char > '~' {
			fmt.Fprintf(&name, "%%%02X", char)
		} else {
			name.WriteByte(char)
		}
	}
	return name.String()
}

// wholeSeconds rounds up.
func wholeSeconds(wait *durationpb.Duration) int64 {
	if wait.GetNanos() > 0 {
		return wait.GetSeconds() + 1
	}
	return wait.GetSeconds()
}
