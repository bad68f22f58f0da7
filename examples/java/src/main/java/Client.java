import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import com.google.protobuf.Duration;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import ratelimit.v1.CheckRequest;
import ratelimit.v1.CheckResponse;
import ratelimit.v1.RateLimitServiceGrpc;
import ratelimit.v1.RateLimitServiceGrpc.RateLimitServiceBlockingStub;

/** Asks rlaas, for each user id on standard input: may this request pass? */
public final class Client {
  /**
   * The longest that a request waits for its answer. Generous for a first try: in production, where
   * connections and the JVM are warm, 20 are plenty, and a late answer is worth no more than none.
   */
  private static final long DEADLINE_MS =
      Long.parseLong(System.getenv().getOrDefault("DEADLINE_MS", "5000"));

  /**
   * What a request meets when there is no answer. Yours to decide: let it pass, and there is no
   * limit for that long, or turn it away, and an outage of the limits is an outage of yours.
   */
  private static final boolean PASSES_WITHOUT_ANSWER = true;

  /** One for the whole process, for all its threads: it connects again by itself. */
  private static ManagedChannel connect(String target) {
    ManagedChannelBuilder<?> channel =
        Grpc.newChannelBuilder(target, InsecureChannelCredentials.create())
            // All addresses of the name take turns: the pods of a headless Service, for one.
            .defaultLoadBalancingPolicy("round_robin")
            // A server that vanished without a word is noticed.
            .keepAliveTime(10, SECONDS)
            .keepAliveTimeout(1, SECONDS);
    // A path would be sent as the authority of a Unix domain socket: it is no valid one.
    return (target.startsWith("unix:") ? channel.overrideAuthority("localhost") : channel).build();
  }

  /** Asks once. Never again for the same request: a call that was sent may have counted. */
  private static String ask(RateLimitServiceBlockingStub limits, String userId) {
    CheckRequest request = CheckRequest.newBuilder().setUserId(userId).build();
    CheckResponse response;
    try {
      response = limits.withDeadlineAfter(DEADLINE_MS, MILLISECONDS).check(request);
    } catch (StatusRuntimeException error) {
      return switch (error.getStatus().getCode()) {
        // Bugs of ours: don't hide them behind the policy.
        case INVALID_ARGUMENT, PERMISSION_DENIED, UNAUTHENTICATED, UNIMPLEMENTED -> throw error;
        // UNAVAILABLE and DEADLINE_EXCEEDED above all: no answer.
        default -> "no answer (" + error.getStatus().getCode() + "): "
            + (PASSES_WITHOUT_ANSWER ? "it passes" : "503 Service Unavailable");
      };
    }
    if (response.getAllowed()) {
      return "allowed, " + response.getRemaining() + " left";
    }
    if (response.hasRetryAfter()) {
      Duration wait = response.getRetryAfter();
      long seconds = wait.getSeconds() + (wait.getNanos() > 0 ? 1 : 0);
      return "429 Too Many Requests, Retry-After: " + seconds;
    }
    // Waiting does not help: the cost is above the limit, or the limit is 0.
    return "403 Forbidden, " + response.getReason();
  }

  public static void main(String[] args) throws IOException {
    ManagedChannel channel = connect(args.length > 0 ? args[0] : "127.0.0.1:50051");
    RateLimitServiceBlockingStub limits = RateLimitServiceGrpc.newBlockingStub(channel);
    BufferedReader users = new BufferedReader(new InputStreamReader(System.in));
    for (String userId; (userId = users.readLine()) != null; ) {
      System.out.println(userId + ": " + ask(limits, userId));
    }
    channel.shutdown();
  }
}
