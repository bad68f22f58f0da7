// Checks the rate limit of each user id on standard input.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"math"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "rlaas-client/ratelimitv1"
)

// failOpen is what to do without a response. true allows the request: during an outage of rlaas
// there is no limit. false rejects it: an outage of rlaas is an outage of your service.
const failOpen = true

// deadline of a call. The default is generous for a first try. In production, with established
// connections, 20 ms is enough.
var deadline = milliseconds("DEADLINE_MS", 5000)

// serviceConfig lets gRPC balance calls over all addresses of the name, such as the pods of a headless
// Service, and repeat a call without an answer within its deadline. The request id makes that safe.
// If many calls fail, none is repeated. (gRPC for Go has no hedging.)
const serviceConfig = `{
	"loadBalancingConfig": [{"round_robin": {}}],
	"methodConfig": [{
		"name": [{"service": "ratelimit.v1.RateLimitService", "method": "Check"}],
		"retryPolicy": {
			"maxAttempts": 3,
			"initialBackoff": "0.005s",
			"maxBackoff": "0.02s",
			"backoffMultiplier": 2,
			"retryableStatusCodes": ["UNAVAILABLE"]
		}
	}],
	"retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}
}`

// connect creates one channel for the whole process. Any number of goroutines share it, and it
// reconnects automatically.
func connect(target string) (*grpc.ClientConn, error) {
	alive := keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second}
	return grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(serviceConfig),
		// Detect a server that disappeared without closing the connection.
		grpc.WithKeepaliveParams(alive))
}

// check sends one call, with a new request id: however often gRPC repeats the call, it takes one unit.
// Make the id here. Never copy it from a client of yours, who could then pass without paying.
func check(limits pb.RateLimitServiceClient, userID string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	response, err := limits.Check(ctx, &pb.CheckRequest{UserId: userID, RequestId: rand.Text()})
	switch code := status.Code(err); code {
	case codes.OK:
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		// Errors caused by this client: return them.
		return "", err
	default:
		// Usually Unavailable or DeadlineExceeded.
		outcome := "503 Service Unavailable"
		if failOpen {
			outcome = "allowed"
		}
		return fmt.Sprintf("no response (%v): %s", code, outcome), nil
	}
	if response.GetAllowed() {
		return fmt.Sprintf("allowed, %d left", response.GetRemaining()), nil
	}
	if wait := response.GetRetryAfter(); wait != nil {
		seconds := math.Ceil(wait.AsDuration().Seconds())
		return fmt.Sprintf("429 Too Many Requests, Retry-After: %.0f", seconds), nil
	}
	// Waiting does not help: the cost is above the limit, or the limit is 0.
	return fmt.Sprintf("403 Forbidden, %v", response.GetReason()), nil
}

func main() {
	target := "127.0.0.1:50051"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	channel, err := connect(target)
	if err != nil {
		log.Fatal(err)
	}
	defer channel.Close()
	limits := pb.NewRateLimitServiceClient(channel)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		outcome, err := check(limits, lines.Text())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", lines.Text(), outcome)
	}
}

// milliseconds reads a duration from the environment.
func milliseconds(variable string, preset int) time.Duration {
	if number, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		preset = number
	}
	return time.Duration(preset) * time.Millisecond
}
