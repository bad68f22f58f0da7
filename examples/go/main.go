// Asks rlaas, for each user id on standard input: may this request pass?
package main

import (
	"bufio"
	"context"
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

// What a request meets when there is no answer. Yours to decide: let it pass, and there is no
// limit for that long, or turn it away, and an outage of the limits is an outage of yours.
const passesWithoutAnswer = true

// deadline is the longest that a request waits for its answer. Generous for a first try: in
// production, where connections are warm, 20 ms are plenty, and a late answer is worth no more
// than none.
var deadline = milliseconds("DEADLINE_MS", 5000)

// connect makes one channel for the whole process: any number of goroutines share it, and it
// connects again by itself.
func connect(target string) (*grpc.ClientConn, error) {
	alive := keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second}
	return grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// All addresses of the name take turns: the pods of a headless Service, for one.
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
		// A server that vanished without a word is noticed.
		grpc.WithKeepaliveParams(alive))
}

// ask asks once. Never again for the same request: a call that was sent may have counted.
func ask(limits pb.RateLimitServiceClient, userID string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	response, err := limits.Check(ctx, &pb.CheckRequest{UserId: userID})
	switch code := status.Code(err); code {
	case codes.OK:
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		// Bugs of ours: don't hide them behind the policy.
		return "", err
	default:
		// Unavailable and DeadlineExceeded above all: no answer.
		outcome := "503 Service Unavailable"
		if passesWithoutAnswer {
			outcome = "it passes"
		}
		return fmt.Sprintf("no answer (%v): %s", code, outcome), nil
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
		answer, err := ask(limits, lines.Text())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", lines.Text(), answer)
	}
}

// milliseconds reads a length of time from the environment.
func milliseconds(variable string, preset int) time.Duration {
	if number, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		preset = number
	}
	return time.Duration(preset) * time.Millisecond
}
