//! The closed list of reasons: the same words in conditions, events, metric labels, JSON-RPC error
//! data, logs and docs. A reason that is not here does not exist.
//!
//! `docs/reasons.md` is generated from this list; a test compares them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What follows from a reason for the generation that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing is wrong.
    Normal,
    /// Waits for another object, which may come at any time and is noticed at once.
    Waiting,
    /// Tried again with backoff until the startup deadline of the generation.
    Retryable,
    /// Ends the generation at once; the next one comes slowly, or at once on a change.
    Permanent,
    /// A single request was refused; nothing follows for the generation.
    Refusal,
}

macro_rules! reasons {
    ($($name:ident, $class:ident, $doc:literal, $next:literal;)*) => {
        /// Why something is as it is. CamelCase on every surface.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        pub enum Reason { $(#[doc = $doc] $name,)* }

        impl Reason {
            /// Every reason, in the order of the docs.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),*];

            /// The word, as it stands on every surface.
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$name => stringify!($name),)* }
            }

            /// What follows from it.
            pub const fn class(self) -> Class {
                match self { $(Reason::$name => Class::$class,)* }
            }

            /// What it means, one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Reason::$name => $doc,)* }
            }

            /// What the user does next, one sentence; empty where there is nothing to do.
            pub const fn next_step(self) -> &'static str {
                match self { $(Reason::$name => $next,)* }
            }
        }
    };
}

reasons! {
    // the good path
    Accepted, Normal, "The object is valid and its partner is there.", "";
    Ready, Normal, "Everything that was asked for is in service.", "";
    NoAttachments, Normal, "The Agent names no server, so there is nothing to attach.", "";
    Requested, Normal, "A generation was asked for and has no stage yet.", "";
    Realizing, Normal, "The server is being started and asked for its tools.", "";
    Publishing, Normal, "The generation is proven and waits for the gateway to serve it.", "";
    Active, Normal, "The generation is proven by a handshake and serves calls.", "";
    Draining, Normal, "The generation takes no new call; those in flight finish.", "";
    Removed, Normal, "The generation is gone.", "";
    Replaced, Normal, "A newer generation took over.", "";
    Suspended, Normal, "spec.suspend is true.", "Set spec.suspend to false to serve again.";
    NoSession, Normal, "The Agent's Sessions are made on demand, and there is none now to attach to.", "Create a Session that names the Agent.";
    Outranked, Normal, "The Session has an attachment of its own under this name, which takes the place of the Agent's.", "";
    WaitingForAttachments, Normal, "Some attachments are not in service yet.", "Look at the attachments that are not Ready: kubectl get mcpa.";
    // half pairs and wrong specs
    AgentNotFound, Waiting, "The Agent that spec.agentRef names does not exist.", "Apply the Agent, or create this object anew with another spec.agentRef.";
    ToolSetMissing, Waiting, "The Agent has no ToolSet for this attachment, so nothing of it may be used.", "Add an entry with this attachment's name to spec.toolSets of the Agent.";
    AttachmentMissing, Waiting, "A ToolSet names an attachment that does not exist.", "Apply the McpAttachment, or remove the ToolSet.";
    EnvironmentMissing, Permanent, "The Agent has no environment for a sandboxed server to run in.", "Set spec.environment of the Agent.";
    EgressForbidden, Permanent, "The environment's egress names what no sandbox may reach.", "Name other networks in spec.environment.egress of the Agent.";
    DuplicateServerName, Permanent, "An older attachment of the same Agent has this server name.", "Set another spec.serverName.";
    DuplicateTarget, Permanent, "An older attachment of the same Agent has exactly this target.", "Remove one of the two.";
    SessionAttachmentsDenied, Permanent, "The Agent lets its Sessions bring no attachments of their own.", "Set spec.sessionAttachments.max of the Agent to Allow, or take the attachments out of the Session.";
    TooManyAttachments, Permanent, "The Session has as many attachments as one can have.", "Take some out.";
    InvalidServerName, Permanent, "The server name cannot be used in tool ids.", "Use letters, digits and single hyphens or underscores.";
    TargetForbidden, Permanent, "The target's address is one that the gateway never connects to.", "Use an address outside loopback, link-local, metadata, the API server, gateways and Session pods.";
    InsecureCredential, Permanent, "A credential would travel over plain http.", "Use https, or set spec.http.insecureCredential to true.";
    InvalidUrl, Permanent, "The URL cannot be used.", "Write an absolute http or https URL without user information.";
    SessionNameTaken, Permanent, "A Session of the Agent's name exists that does not belong to it.", "Delete that Session, or give the Agent another name.";
    SessionNotOnDemand, Permanent, "The Session names an Agent that has one Standing Session of its own and takes no other.", "Use the Agent's own Session, or name an Agent whose spec.session.mode is OnDemand.";
    SessionIdle, Normal, "No call was made in the Session for the Agent's idleTimeout, so it was deleted.", "Create another Session when it is needed.";
    SessionOutlived, Normal, "The Session has existed for the Agent's maxLifetime, so it was deleted.", "Create another Session when it is needed.";
    DuplicateExport, Permanent, "An older Agent exports a tool under this name.", "Choose another name in spec.exports.";
    ExportNotAllowed, Permanent, "Agents of this namespace may not export tools.", "Have the namespace added to gateway.mcp.exportNamespaces, or remove the export.";
    ExportNotCallable, Permanent, "The Agent exports a tool that its own ToolSets do not let anybody call.", "Allow the tool in the attachment's ToolSet, or remove the export.";
    UnreadableObject, Permanent, "The stored object does not fit the schema that this version reads.", "Apply the object again in the present schema.";
    SuspiciousValue, Normal, "A value in command, args or env looks like a secret.", "Move it to a Secret and name it in secretEnv.";
    // Secrets
    SecretNotFound, Permanent, "The Secret that is named does not exist.", "Create the Secret; the next try follows at once.";
    SecretKeyNotFound, Permanent, "The Secret lacks the key that is named.", "Add the key to the Secret; the next try follows at once.";
    SecretValueInvalid, Permanent, "The value in the Secret cannot be used where it is named.", "Mend the value in the Secret; the next try follows at once.";
    SecretNotAllowed, Permanent, "The Secret that is named may not go to this target.", "Name the target's origin, or stdio, in the Secret's annotation awaken.dev/allowed-targets, or name another Secret.";
    SecretReserved, Permanent, "The Secret that is named is one of the installation's own.", "Name another Secret.";
    // pods
    ImagePullFailed, Retryable, "The image cannot be pulled.", "Check the image name, the registry and pull secrets.";
    Unschedulable, Retryable, "No node takes the pod.", "Compare the requests with what the nodes have.";
    PodRefused, Permanent, "The API server refused the pod.", "Read the message; usually a quota, PodSecurity or an admission policy.";
    ObjectRefused, Permanent, "An object that the Session needs cannot be made.", "Read the message; usually a quota, an admission policy, or another object of that name.";
    QuotaExceeded, Retryable, "A ResourceQuota has no room for the object.", "Raise the quota, or remove something.";
    PodConfigError, Permanent, "The kubelet cannot make the container as written.", "Read the message and mend the environment.";
    RunAsNonRoot, Permanent, "The image wants to run as root, which Session pods never do.", "Use an image that runs as another user, or set environment.runAsUser.";
    CommandNotFound, Permanent, "The command is not in the image.", "Check spec.sandboxStdio.command against the image.";
    CommandNotExecutable, Permanent, "The command is in the image and cannot be executed.", "Check its mode, and that it is built for the node's architecture.";
    ServerExited, Permanent, "The server ended before it answered.", "Read the last lines of its error output in the message.";
    OutOfMemory, Permanent, "The container went over its memory limit.", "Raise environment.resources.limits.memory.";
    PodLost, Retryable, "The Session pod is gone.", "";
    // handshake
    ConnectFailed, Retryable, "The server cannot be reached.", "Check the address, the Service and network policies.";
    NameNotResolved, Retryable, "The host name does not resolve.", "Check the host name.";
    TlsFailed, Permanent, "The TLS connection cannot be made.", "Check the server's certificate.";
    Unauthorized, Permanent, "The server refused the credential (401 or 403).", "Check the Secret's value; a change is tried at once.";
    ServerUnavailable, Retryable, "The server answered 5xx or 429.", "Look at the server.";
    Redirected, Permanent, "The server answered with a redirect, which is never followed.", "Write the final URL into spec.http.url.";
    NotAnMcpServer, Permanent, "What answered does not speak MCP.", "Check the URL or the command.";
    UnsupportedProtocolVersion, Permanent, "The server chose a protocol version that the gateway does not speak.", "Use a server that speaks one of the documented versions.";
    InvalidToolList, Permanent, "The server's tool list cannot be used.", "Read the message; the server needs mending.";
    HandshakeTimeout, Retryable, "The server does not answer the handshake in time.", "Look at the server; raise limits.startupTimeout if it is only slow.";
    StartupTimeout, Permanent, "The generation was not proven before its startup deadline.", "Read the message for what it waited for; raise limits.startupTimeout if it is only slow.";
    LinkRefused, Retryable, "The Session pod refused the gateway's link.", "";
    // hosts
    Rescheduling, Normal, "The Session, or the server of the tool that is called, is on its way back into service.", "Try again after Retry-After; a JSON-RPC error has the seconds in data.retryAfter.";
    NoGateway, Waiting, "No gateway is alive.", "Look at the gateway's Deployment.";
    HostLost, Normal, "The gateway that owned the generation is gone.", "";
    ServerLost, Retryable, "A server that was in service is gone.", "";
    DrainTimeout, Normal, "Calls in flight were cut when drainTimeout ended.", "";
    // observations
    ProtocolNoise, Normal, "The server writes lines to stdout that are no protocol messages.", "Make it write them to stderr.";
    ListTruncated, Normal, "The server's list repeats a cursor and was cut there.", "Mend the server's paging.";
    ToolNotFound, Normal, "A ToolSet names a tool that the server does not list.", "Compare the names in the Agent's ToolSet with the tools that the server lists.";
    ToolRepeated, Normal, "The server lists a tool more than once, word for word; it is offered once.", "Mend the server's list.";
    ToolQuarantined, Normal, "A tool's definition is not valid and the tool is withheld.", "Mend the tool's schema or name in the server.";
    // refused or ended calls
    UnknownTool, Refusal, "There is no such tool here for the caller.", "Ask tools/list for the names.";
    Denied, Refusal, "The policy does not allow the call.", "";
    InvalidRequest, Refusal, "The request is no valid MCP message, or lacks what MCP asks of its headers.", "Read the message; the client needs mending.";
    UnknownMethod, Refusal, "There is no such method here.", "";
    InvalidArguments, Refusal, "The arguments cannot be used.", "";
    RepeatedKey, Refusal, "An object in the request names one key twice.", "Send each key once.";
    BatchRefused, Refusal, "Batches are not taken.", "Send one message a request.";
    DuplicateRequestId, Refusal, "A request with this id is still in flight in this MCP session.", "Use another id.";
    MessageTooLarge, Permanent, "A message is over the limit.", "Send or ask for less, or raise limits.maxMessageBytes.";
    TooManyCalls, Refusal, "As many calls as allowed are in flight.", "Try again later, or raise limits.maxConcurrentCalls.";
    TooManySessions, Refusal, "The caller has as many MCP sessions as allowed.", "End some with DELETE.";
    CallTimeout, Refusal, "The server did not answer within callTimeout.", "Raise limits.callTimeout if the tool is only slow.";
    Cancelled, Refusal, "The caller cancelled the call.", "";
    OutcomeUnknown, Refusal, "The call may have run; its result is not known, and it is not sent again.", "Check the effect before you repeat the call.";
    ServerUnreachable, Refusal, "The call could not be sent to the server; it did not run.", "Try again.";
    JournalUnavailable, Refusal, "The journal cannot take the record, so nothing was sent.", "Try again; look at the journal's volume or database.";
    NotServing, Refusal, "The Session, or the server of the tool that is called, is not served at the moment.", "Try again after Retry-After or data.retryAfter; where there is neither, look at the McpAttachment.";
    Unauthenticated, Refusal, "The request carries no valid token.", "Ask for a token with audience awaken-gateway.";
    Forbidden, Refusal, "The caller may not do this.", "Ask for the right that the message names.";
    NotFound, Refusal, "There is no such thing, or the caller may not know of it.", "";
    AlreadyExists, Refusal, "An object of this name exists already.", "Use another name, or delete the one that exists.";
    FieldConflict, Refusal, "Somebody else set these fields, or changed the object meanwhile.", "Leave those fields to that manager, or repeat the call with force to take them over.";
    ApiServerUnavailable, Refusal, "The API server does not answer, or answers that it cannot.", "Try again.";
    UnknownMcpSession, Refusal, "The MCP session is unknown or ended.", "Initialize again.";
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_documented_and_ends_in_a_full_stop() {
        for reason in Reason::ALL {
            assert!(reason.meaning().ends_with('.'), "{reason}");
            let next = reason.next_step();
            assert!(next.is_empty() || next.ends_with('.'), "{reason}");
        }
    }

    #[test]
    fn names_are_unique_and_fit_kubernetes_conditions() {
        let mut seen = std::collections::BTreeSet::new();
        for reason in Reason::ALL {
            assert!(seen.insert(reason.as_str()));
            assert!(reason.as_str().chars().all(|c| c.is_ascii_alphanumeric()));
        }
    }
}
