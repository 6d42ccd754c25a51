package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.stream.Collectors;

/** A node rejected the request, or the client did before it sent anything. Nothing was changed. */
public class RejectedException extends ConcordException {
    private final transient Details details;

    RejectedException(Details details) {
        super(details.text(), null);
        this.details = details;
    }

    record Details(int status, List<Violation> violations, String node, Map<String, String> headers) {
        String text() {
            String reasons = violations.stream().map(Violation::toString).collect(Collectors.joining("; "));
            return status + ": " + (reasons.isEmpty() ? "the response gives no reason" : reasons);
        }

        String code() {
            return violations.isEmpty() ? "" : violations.get(0).code();
        }
    }

    Details details() {
        return details;
    }

    /** The HTTP status. */
    public int status() {
        return details.status;
    }

    /** The code of the first reason, such as {@code config_exists}; empty if the node gives none. */
    public String code() {
        return details.code();
    }

    /** All reasons. */
    public List<Violation> violations() {
        return details.violations;
    }

    /** The JSON pointers of what is wrong. */
    public List<String> paths() {
        return details.violations.stream().filter(each -> !each.location().isEmpty()).map(Violation::path).toList();
    }

    /** The URL of the node; empty if the client rejected the request. */
    public Optional<String> node() {
        return Optional.ofNullable(details.node);
    }

    /** The id under which the log of the node names the request. */
    public Optional<String> requestId() {
        return Optional.ofNullable(details.headers.get("x-request-id"));
    }

    /** The revision at which the node evaluated the request. */
    public OptionalLong revision() {
        return Answer.number(details.headers.get("x-concord-revision"));
    }

    static RejectedException of(int status, JsonNode body, String node, Map<String, String> headers) {
        Details details = new Details(status, Violation.of(body), node, headers);
        return switch (details.code()) {
            case "change_required" -> new ChangeRequiredException(details);
            case "environment_frozen" -> new EnvironmentFrozenException(details);
            default -> switch (status) {
                case 401 -> new UnauthorizedException(details);
                case 403 -> new ForbiddenException(details);
                case 404 -> new NotFoundException(details);
                case 405 -> new MethodNotAllowedException(details);
                case 409 -> new ConflictException(details);
                case 410 -> new ExpiredException(details);
                case 412 -> new PreconditionFailedException(details);
                case 413 -> new TooLargeException(details);
                case 415 -> new UnsupportedCodingException(details);
                case 422 -> new InvalidException(details);
                case 429 -> new RateLimitedException(details);
                case 500 -> new ServerErrorException(details);
                case 507 -> new StorageFullException(details);
                default -> new RejectedException(details);
            };
        };
    }

    /** A rejection before anything is sent. */
    static InvalidException invalid(String code, String message, String... location) {
        Violation why = new Violation("validation_error", code, message, List.of(location));
        return new InvalidException(new Details(422, List.of(why), null, Map.of()));
    }

    /**
     * The nodes belong to another cluster, or to one that was restored to an earlier state. There is nothing to resume
     * from, as if the changes were compacted.
     */
    static ExpiredException otherCluster(String node) {
        String text = "the nodes are of another cluster than before, or of an earlier state of it";
        Violation why = new Violation("expired_error", "cluster_changed", text, List.of());
        return new ExpiredException(new Details(410, List.of(why), node, Map.of()));
    }
}
