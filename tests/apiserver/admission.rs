//! What is refused at admission, each with words that say what to do.

use crate::server::{ADMIN, Server, object};
use rstest::rstest;
use serde_json::{Value, json};

fn stdio() -> Value {
    json!({"agentRef": {"name": "coder"}, "sandboxStdio": {"command": "server"}})
}

fn http() -> Value {
    json!({"agentRef": {"name": "coder"}, "http": {"url": "https://mcp.example.com/mcp"}})
}

/// The value with one place changed.
fn with(mut value: Value, pointer: &str, new: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    value.pointer_mut(parent).unwrap()[key] = new;
    value
}

fn agent() -> Value {
    json!({"environment": {"image": "registry.example.com/tools:1"}, "toolSets": []})
}

fn tools(count: usize) -> Value {
    (0..count).map(|i| json!({"name": format!("t{i}"), "permission": "Allow"})).collect()
}

fn tool_sets(sets: usize, each: usize) -> Value {
    let set = |i| json!({"attachment": format!("a{i}"), "tools": tools(each)});
    (0..sets).map(set).collect()
}

fn exports(name: &str) -> Value {
    json!([{"attachment": "a", "tool": "t", "name": name}])
}

fn egress(cidr: &str) -> Value {
    json!({"cidr": cidr, "ports": [{"port": 443}]})
}

fn allow(rule: Value) -> Value {
    json!({"mode": "Allow", "rules": [rule]})
}

fn secret_env(name: &str) -> Value {
    json!([{"name": name, "secretKeyRef": {"name": "s", "key": "k"}}])
}

#[rstest]
#[case::two_targets(with(stdio(), "/http", http()["http"].clone()), "exactly one of sandboxStdio and http must be set")]
#[case::no_target(json!({"agentRef": {"name": "coder"}}), "exactly one of sandboxStdio and http must be set")]
#[case::no_agent(with(stdio(), "/agentRef", json!({})), "spec.agentRef.name: Required value")]
#[case::agent_elsewhere(with(stdio(), "/agentRef", json!({"name": "other/coder"})), "must be the metadata.name of an Agent")]
#[case::agent_namespace(with(stdio(), "/agentRef/namespace", json!("other")), "unknown field \"spec.agentRef.namespace\"")]
#[case::user_info(with(http(), "/http/url", json!("https://user:pass@mcp.example.com/mcp")), "url must not contain user information")]
#[case::user_only(with(http(), "/http/url", json!("https://user@mcp.example.com/mcp")), "url must not contain user information")]
#[case::user_info_in_other_case(with(http(), "/http/url", json!("HTTPS://u:p@mcp.example.com")), "url must not contain user information")]
#[case::fragment(with(http(), "/http/url", json!("https://mcp.example.com/mcp#x")), "url must not contain a fragment")]
#[case::ftp(with(http(), "/http/url", json!("ftp://mcp.example.com/mcp")), "url must be an absolute http or https URL")]
#[case::relative(with(http(), "/http/url", json!("/mcp")), "url must be an absolute http or https URL")]
#[case::no_host(with(http(), "/http/url", json!("http://:80/mcp")), "url must be an absolute http or https URL")]
#[case::no_url(with(http(), "/http/url", json!("mcp")), "url must be an absolute http or https URL")]
#[case::not_ascii(with(http(), "/http/url", json!("https://mcp.example.com/é")), "url must be plain ASCII")]
#[case::line_break(with(http(), "/http/url", json!("https://mcp.example.com/\r\nx: y")), "url must be")]
#[case::plain_credential(
    json!({"agentRef": {"name": "a"}, "http": {"url": "http://mcp.example.com", "credential": {"secretKeyRef": {"name": "s", "key": "k"}}}}),
    "a credential travels over https only"
)]
#[case::transport_header(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "s", "key": "k"}, "header": "Content-Length"})),
    "header must be an ordinary header name"
)]
#[case::header_with_break(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "s", "key": "k"}, "header": "X\r\nY"})),
    "header must be an ordinary header name"
)]
#[case::scheme_of_two_words(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "s", "key": "k"}, "scheme": "a b"})),
    "scheme must be one word or empty"
)]
#[case::hop_by_hop_header(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "s", "key": "k"}, "header": "TE"})),
    "header must be an ordinary header name"
)]
#[case::expect_header(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "s", "key": "k"}, "header": "expect"})),
    "header must be an ordinary header name"
)]
#[case::upgrade_header(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "s", "key": "k"}, "header": "Upgrade"})),
    "header must be an ordinary header name"
)]
#[case::trailer_header(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "s", "key": "k"}, "header": "Trailer"})),
    "header must be an ordinary header name"
)]
#[case::encoding_header(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "s", "key": "k"}, "header": "Content-Encoding"})),
    "header must be an ordinary header name"
)]
#[case::accept_header(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "s", "key": "k"}, "header": "Accept-Encoding"})),
    "header must be an ordinary header name"
)]
#[case::mcp_header(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "s", "key": "k"}, "header": "Mcp-Anything"})),
    "header must be an ordinary header name"
)]
#[case::null_in_command(with(stdio(), "/sandboxStdio/command", json!("a\0b")), "command must not contain a NUL character")]
#[case::null_in_args(with(stdio(), "/sandboxStdio/args", json!(["a", "b\0"])), "args must not contain a NUL character")]
#[case::null_in_env(
    with(stdio(), "/sandboxStdio/env", json!([{"name": "A", "value": "\0"}])),
    "the value of an environment variable must not contain a NUL character"
)]
#[case::secret_elsewhere(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "other/s", "key": "k"}})),
    "the name of a Secret holds"
)]
#[case::secret_namespace(
    with(http(), "/http/credential", json!({"secretKeyRef": {"name": "s", "key": "k", "namespace": "other"}})),
    "unknown field \"spec.http.credential.secretKeyRef.namespace\""
)]
#[case::reserved_env(with(stdio(), "/sandboxStdio/env", json!([{"name": "AWAKEN_POD_UID", "value": "x"}])), "not with AWAKEN_ or KUBERNETES_")]
#[case::reserved_secret_env(
    with(stdio(), "/sandboxStdio/secretEnv", secret_env("KUBERNETES_SERVICE_HOST")),
    "not with AWAKEN_ or KUBERNETES_"
)]
#[case::env_name(with(stdio(), "/sandboxStdio/env", json!([{"name": "A=B", "value": "x"}])), "holds letters, digits and '_'")]
#[case::env_twice(with(stdio(), "/sandboxStdio/env", json!([{"name": "A"}, {"name": "A"}])), "Duplicate value")]
#[case::env_and_secret_env(
    json!({"agentRef": {"name": "a"}, "sandboxStdio": {"command": "c", "env": [{"name": "A", "value": "1"}], "secretEnv": secret_env("A")}}),
    "a variable stands in env or in secretEnv, not in both"
)]
#[case::no_command(with(stdio(), "/sandboxStdio/command", json!("")), "spec.sandboxStdio.command")]
#[case::long_args(with(stdio(), "/sandboxStdio/args", vec!["x".repeat(4000); 9].into()), "args hold at most 32768 characters")]
#[case::server_name_separator(with(stdio(), "/serverName", json!("a__b")), "must not contain '__'")]
#[case::server_name_case(with(stdio(), "/serverName", json!("Files")), "serverName may hold lower-case letters")]
#[case::startup_too_long(with(stdio(), "/limits", json!({"startupTimeout": "61m"})), "startupTimeout must be between 1s and 1h")]
#[case::startup_too_short(with(stdio(), "/limits", json!({"startupTimeout": "10ms"})), "startupTimeout must be between 1s and 1h")]
#[case::call_zero(with(stdio(), "/limits", json!({"callTimeout": "0s"})), "callTimeout must be between 1s and 1h")]
#[case::call_without_unit(with(stdio(), "/limits", json!({"callTimeout": "60"})), "spec.limits.callTimeout")]
#[case::call_in_days(with(stdio(), "/limits", json!({"callTimeout": "1 day"})), "spec.limits.callTimeout")]
#[case::call_number(with(stdio(), "/limits", json!({"callTimeout": 60})), "spec.limits.callTimeout")]
#[case::drain_negative(with(stdio(), "/limits", json!({"drainTimeout": "-1s"})), "spec.limits.drainTimeout")]
#[case::drain_over_every_number(with(stdio(), "/limits", json!({"drainTimeout": "99999999999999999999999h"})), "spec.limits.drainTimeout")]
#[case::no_calls(with(stdio(), "/limits", json!({"maxConcurrentCalls": 0})), "spec.limits.maxConcurrentCalls")]
#[case::small_messages(with(stdio(), "/limits", json!({"maxMessageBytes": 10})), "spec.limits.maxMessageBytes")]
#[case::unknown_field(with(stdio(), "/sandboxStdio/shell", json!(true)), "unknown field \"spec.sandboxStdio.shell\"")]
#[case::rollout(with(stdio(), "/rollout", json!("Replace")), "spec.rollout: Unsupported value")]
#[case::later_image(with(stdio(), "/sandboxStdio/image", json!("x")), "unknown field \"spec.sandboxStdio.image\"")]
#[tokio::test]
async fn an_attachment_is_refused(#[case] spec: Value, #[case] words: &str) {
    let server = Server::new().await;
    server.create(&object("McpAttachment", "files", spec)).await.refused(words);
}

#[rstest]
#[case::second_tool_set(with(agent(), "/toolSets", json!([{"attachment": "a"}, {"attachment": "a"}])), "spec.toolSets[1]: Duplicate value")]
#[case::second_rule(
    with(agent(), "/toolSets", json!([{"attachment": "a", "tools": [{"name": "t", "permission": "Allow"}, {"name": "t", "permission": "Deny"}]}])),
    "tools[1]: Duplicate value"
)]
#[case::unknown_permission(
    with(agent(), "/toolSets", json!([{"attachment": "a", "tools": [{"name": "t", "permission": "Maybe"}]}])),
    "Unsupported value: \"Maybe\""
)]
#[case::ask_is_later(with(agent(), "/toolSets", json!([{"attachment": "a", "defaultPermission": "Ask"}])), "Unsupported value: \"Ask\"")]
#[case::permission_in_lower_case(with(agent(), "/toolSets", json!([{"attachment": "a", "defaultPermission": "allow"}])), "Unsupported value: \"allow\"")]
#[case::no_permission(with(agent(), "/toolSets", json!([{"attachment": "a", "tools": [{"name": "t"}]}])), "permission: Required value")]
#[case::tools_by_sum(
    with(agent(), "/toolSets", tool_sets(5, 205)),
    "an Agent names at most 1024 tools in all its toolSets"
)]
#[case::tools_in_one(with(agent(), "/toolSets", tool_sets(1, 257)), "must have at most 256 items")]
#[case::tool_sets(with(agent(), "/toolSets", tool_sets(65, 0)), "must have at most 64 items")]
#[case::tools_text(with(agent(), "/toolSets", json!([{"attachment": "a", "tools": "read"}])), "spec.toolSets[0].tools")]
#[case::tools_map(with(agent(), "/toolSets", json!([{"attachment": "a", "tools": {"read": "Allow"}}])), "spec.toolSets[0].tools")]
#[case::tools_number(with(agent(), "/toolSets", json!([{"attachment": "a", "tools": 3}])), "spec.toolSets[0].tools")]
#[case::tools_of_text(with(agent(), "/toolSets", json!([{"attachment": "a", "tools": ["read"]}])), "spec.toolSets[0].tools[0]")]
#[case::tool_sets_text(with(agent(), "/toolSets", json!("all")), "spec.toolSets")]
#[case::tool_sets_map(with(agent(), "/toolSets", json!({"a": {}})), "spec.toolSets")]
#[case::root(with(agent(), "/environment/runAsUser", json!(0)), "spec.environment.runAsUser")]
#[case::image(with(agent(), "/environment/image", json!("a b")), "image must be an image reference")]
#[case::no_image(with(agent(), "/environment", json!({})), "spec.environment.image: Required value")]
#[case::mount_root(with(agent(), "/environment/workspace", json!({"mountPath": "/"})), "spec.environment.workspace.mountPath")]
#[case::mount_relative(with(agent(), "/environment/workspace", json!({"mountPath": "work"})), "mountPath must be an absolute path")]
#[case::mount_up(with(agent(), "/environment/workspace", json!({"mountPath": "/work/../etc"})), "mountPath must be an absolute path")]
#[case::mount_tmp(with(agent(), "/environment/workspace", json!({"mountPath": "/tmp"})), "mountPath must be outside /tmp")]
#[case::mount_awaken(with(agent(), "/environment/workspace", json!({"mountPath": "/awaken/x"})), "mountPath must be outside /tmp")]
#[case::pull_policy(with(agent(), "/environment/imagePullPolicy", json!("Sometimes")), "Unsupported value: \"Sometimes\"")]
#[case::quantity(with(agent(), "/environment/resources", json!({"limits": {"memory": "much"}})), "spec.environment.resources.limits.memory")]
#[case::negative_quantity(with(agent(), "/environment/resources", json!({"limits": {"memory": "-1Gi"}})), "spec.environment.resources.limits.memory")]
#[case::claims(with(agent(), "/environment/resources", json!({"claims": []})), "unknown field \"spec.environment.resources.claims\"")]
#[case::session_mode(with(agent(), "/session", json!({"mode": "Sometimes"})), "Unsupported value: \"Sometimes\"")]
#[case::session_ends_standing(with(agent(), "/session", json!({"idleTimeout": "1h"})), "idleTimeout and maxLifetime need session.mode OnDemand")]
#[case::session_idle_short(with(agent(), "/session", json!({"mode": "OnDemand", "idleTimeout": "9s"})), "idleTimeout must be between 10s and 8760h")]
#[case::session_idle_word(with(agent(), "/session", json!({"mode": "OnDemand", "idleTimeout": "an hour"})), "spec.session.idleTimeout")]
#[case::session_life_long(with(agent(), "/session", json!({"mode": "OnDemand", "maxLifetime": "8761h"})), "maxLifetime must be between 10s and 8760h")]
#[case::export_on_demand(
    with(with(agent(), "/exports", exports("read")), "/session", json!({"mode": "OnDemand"})),
    "exports need session.mode Standing"
)]
#[case::export_of_a_management_name(
    with(agent(), "/exports", exports("agents_list")),
    "name is a management tool's: choose another one"
)]
#[case::export_of_a_name_that_is_kept(
    with(agent(), "/exports", exports("approval_decide")),
    "name is a management tool's: choose another one"
)]
#[case::export_with_a_dot(
    with(agent(), "/exports", exports("a.b")),
    "name may hold letters, digits, '_' and '-' only"
)]
#[case::export_with_a_break(
    with(agent(), "/exports", exports("a\n")),
    "name may hold letters, digits, '_' and '-' only"
)]
#[case::export_too_long(with(agent(), "/exports", exports(&"x".repeat(65))), "may not be more than 64")]
#[case::export_without_name(with(agent(), "/exports", json!([{"attachment": "a", "tool": "t"}])), "spec.exports[0].name: Required value")]
#[case::export_without_tool(with(agent(), "/exports", json!([{"attachment": "a", "tool": "", "name": "n"}])), "spec.exports[0].tool")]
#[case::export_of_elsewhere(
    with(agent(), "/exports", json!([{"attachment": "other/a", "tool": "t", "name": "n"}])),
    "attachment must be the metadata.name of an McpAttachment"
)]
#[case::export_twice(
    with(agent(), "/exports", json!([{"attachment": "a", "tool": "t", "name": "n"}, {"attachment": "b", "tool": "t", "name": "n"}])),
    "spec.exports[1]: Duplicate value"
)]
#[case::exports(
    with(agent(), "/exports", (0..65).map(|i| json!({"attachment": "a", "tool": "t", "name": format!("n{i}")})).collect()),
    "must have at most 64 items"
)]
#[case::egress_without_rules(with(agent(), "/environment/egress", json!({"mode": "Allow"})), "egress needs both or neither")]
#[case::egress_rules_without_mode(with(agent(), "/environment/egress", json!({"rules": [egress("192.0.2.0/24")]})), "egress needs both or neither")]
#[case::egress_word(
    with(agent(), "/environment/egress", allow(egress("example.com"))),
    "cidr must be a network in CIDR notation"
)]
#[case::egress_bits(
    with(agent(), "/environment/egress", allow(egress("192.0.2.1/24"))),
    "without bits beyond its prefix"
)]
#[case::egress_mapped(
    with(agent(), "/environment/egress", allow(egress("::ffff:192.0.2.0/120"))),
    "cidr must be a network in CIDR notation"
)]
#[case::egress_ports(with(agent(), "/environment/egress", allow(json!({"cidr": "192.0.2.0/24"}))), "ports: Required value")]
#[case::egress_no_port(with(agent(), "/environment/egress", allow(json!({"cidr": "192.0.2.0/24", "ports": []}))), "should have at least 1 items")]
#[case::egress_end_port(
    with(agent(), "/environment/egress", allow(json!({"cidr": "192.0.2.0/24", "ports": [{"port": 9, "endPort": 8}]}))),
    "endPort must not be below port"
)]
#[case::egress_except_outside(
    with(agent(), "/environment/egress", allow(json!({"cidr": "192.0.2.0/24", "except": ["192.0.3.0/24"], "ports": [{"port": 9}]}))),
    "except must name networks within cidr"
)]
#[case::egress_except_all(
    with(agent(), "/environment/egress", allow(json!({"cidr": "192.0.2.0/24", "except": ["192.0.2.0/24"], "ports": [{"port": 9}]}))),
    "and not all of it"
)]
#[case::egress_except_word(
    with(agent(), "/environment/egress", allow(json!({"cidr": "192.0.2.0/24", "except": ["x"], "ports": [{"port": 9}]}))),
    "except must be networks in CIDR notation"
)]
#[case::other_images_are_later(with(agent(), "/environment/allowedImages", json!([])), "unknown field \"spec.environment.allowedImages\"")]
#[tokio::test]
async fn an_agent_is_refused(#[case] spec: Value, #[case] words: &str) {
    let server = Server::new().await;
    server.create(&object("Agent", "coder", spec)).await.refused(words);
}

/// A Session with one attachment of its own and its ToolSet.
fn brings() -> Value {
    let own = json!({"name": "mine", "http": {"url": "https://mcp.example.com/mcp"}});
    json!({"agentRef": {"name": "coder"}, "attachments": [own], "toolSets": [{"attachment": "mine"}]})
}

fn many(count: usize, each: impl Fn(usize) -> Value) -> Value {
    let named = |i| with(each(i), "/name", json!(format!("a{i}")));
    let sets: Value = (0..count).map(|i| json!({"attachment": format!("a{i}")})).collect();
    json!({"agentRef": {"name": "coder"}, "attachments": (0..count).map(named).collect::<Value>(), "toolSets": sets})
}

#[rstest]
#[case::two_targets(with(brings(), "/attachments/0/sandboxStdio", json!({"command": "c"})), "exactly one of sandboxStdio and http must be set")]
#[case::no_target(with(brings(), "/attachments", json!([{"name": "mine"}])), "exactly one of sandboxStdio and http must be set")]
#[case::no_tool_set(with(brings(), "/toolSets", json!([])), "each of attachments needs an entry of its name in toolSets")]
#[case::tool_set_of_another(with(brings(), "/toolSets/0/attachment", json!("other")), "each of attachments needs an entry")]
#[case::tool_set_of_nothing(
    with(brings(), "/toolSets", json!([{"attachment": "mine"}, {"attachment": "files"}])),
    "toolSets of a Session are for its own attachments alone"
)]
#[case::no_attachments(with(brings(), "/attachments", json!([])), "toolSets of a Session are for its own attachments alone")]
#[case::name_twice(
    with(brings(), "/attachments", json!([brings()["attachments"][0], brings()["attachments"][0]])),
    "spec.attachments[1]: Duplicate value"
)]
#[case::tool_set_twice(
    with(brings(), "/toolSets", json!([{"attachment": "mine"}, {"attachment": "mine"}])),
    "spec.toolSets[1]: Duplicate value"
)]
#[case::name(with(brings(), "/attachments/0/name", json!("Mine")), "name must be one that an McpAttachment could have")]
#[case::long_name(
    json!({"agentRef": {"name": "a"}, "attachments": [{"name": "a".repeat(64), "sandboxStdio": {"command": "c"}}],
        "toolSets": [{"attachment": "a".repeat(64)}]}),
    "name is longer than 63 characters and cannot stand in tool ids: set serverName"
)]
#[case::server_name(with(brings(), "/attachments/0/serverName", json!("a__b")), "must not contain '__'")]
#[case::url(with(brings(), "/attachments/0/http/url", json!("https://u:p@mcp.example.com")), "url must not contain user information")]
#[case::limit(with(brings(), "/attachments/0/limits", json!({"callTimeout": "0s"})), "callTimeout must be between 1s and 1h")]
#[case::agent_of_its_own(with(brings(), "/attachments/0/agentRef", json!({"name": "x"})), "unknown field \"spec.attachments[0].agentRef\"")]
#[case::ask_is_later(with(brings(), "/toolSets/0/defaultPermission", json!("Ask")), "Unsupported value: \"Ask\"")]
#[case::too_many(many(17, |_| json!({"sandboxStdio": {"command": "c"}})), "must have at most 16 items")]
#[case::too_long_together(
    many(5, |_| json!({"sandboxStdio": {"command": "c", "args": ["x".repeat(4000)]}})),
    "command, args and env of all attachments of a Session hold at most 16384 characters"
)]
#[case::too_long_commands(
    many(16, |i| json!({"sandboxStdio": {"command": "c".repeat(1000), "args": [format!("{i}"), "x".repeat(30)]}})),
    "command, args and env of all attachments of a Session hold at most 16384 characters"
)]
#[case::too_many_secrets(
    many(3, |_| {
        let secrets: Value = (0..22).map(|i| secret_env(&format!("S{i}"))[0].clone()).collect();
        json!({"sandboxStdio": {"command": "c", "secretEnv": secrets}})
    }),
    "secretEnv of all attachments of a Session has at most 64 entries"
)]
#[case::too_many_tools(
    with(many(2, |_| json!({"sandboxStdio": {"command": "c"}})), "/toolSets",
        json!([{"attachment": "a0", "tools": tools(256)}, {"attachment": "a1", "tools": tools(257)}])),
    "must have at most 256 items"
)]
#[case::tools_by_sum(
    with(many(3, |_| json!({"sandboxStdio": {"command": "c"}})), "/toolSets",
        json!([{"attachment": "a0", "tools": tools(100)}, {"attachment": "a1", "tools": tools(100)}, {"attachment": "a2", "tools": tools(100)}])),
    "a Session names at most 256 tools in all its toolSets"
)]
#[tokio::test]
async fn a_session_is_refused(#[case] spec: Value, #[case] words: &str) {
    let server = Server::new().await;
    server.create(&object("Session", "job", spec)).await.refused(words);
}

#[tokio::test]
async fn a_sessions_set_is_replaced_in_one_write() {
    let server = Server::new().await;
    let made = object("Session", "job", brings());
    server.create(&made).await.ok();
    let other = json!({"name": "other", "sandboxStdio": {"command": "c"}});
    let half = json!({"spec": {"attachments": [other]}});
    server.merge(ADMIN, &made, "", &half).await.refused("each of attachments needs an entry");
    let whole = json!({"spec": {"attachments": [other], "toolSets": [{"attachment": "other"}]}});
    let stored = server.merge(ADMIN, &made, "", &whole).await.ok();
    assert_eq!(stored["spec"]["attachments"].as_array().unwrap().len(), 1);
    // Another kind of target under the same name is just the next generation.
    let http = json!([{"name": "other", "http": {"url": "https://mcp.example.com/"}}]);
    let stored = server.merge(ADMIN, &made, "", &json!({"spec": {"attachments": http}})).await.ok();
    serde_json::from_value::<awaken_operator::api::Session>(stored).unwrap();
    server
        .merge(ADMIN, &made, "", &json!({"spec": {"attachments": null, "toolSets": null}}))
        .await
        .ok();
}

#[tokio::test]
async fn what_sessions_may_bring_is_nothing_by_default() {
    let server = Server::new().await;
    let silent = server.create(&object("Agent", "silent", agent())).await.ok();
    let silent: awaken_operator::api::Agent = serde_json::from_value(silent).unwrap();
    assert_eq!(format!("{:?}", silent.spec.session_attachments.max), "Deny");
    let empty = with(agent(), "/sessionAttachments", json!({}));
    let empty = server.create(&object("Agent", "empty", empty)).await.ok();
    assert_eq!(empty["spec"]["sessionAttachments"]["max"], "Deny");
    let later = with(agent(), "/sessionAttachments", json!({"max": "Ask"}));
    let words = "Unsupported value: \"Ask\"";
    server.create(&object("Agent", "later", later)).await.refused(words);
}

#[tokio::test]
async fn how_sessions_come_to_be_never_changes() {
    let server = Server::new().await;
    let words = "session.mode is immutable: make another Agent";
    let silent = object("Agent", "silent", agent());
    let stored = server.create(&silent).await.ok();
    assert_eq!(stored["spec"]["session"], json!({"mode": "Standing"}));
    let to = |mode: &str| json!({"spec": {"session": {"mode": mode}}});
    server.merge(ADMIN, &silent, "", &to("OnDemand")).await.refused(words);
    server.merge(ADMIN, &silent, "", &to("Standing")).await.ok();
    server.merge(ADMIN, &silent, "", &json!({"spec": {"session": null}})).await.ok();
    let made = object("Agent", "made", with(agent(), "/session", json!({"mode": "OnDemand"})));
    server.create(&made).await.ok();
    server.merge(ADMIN, &made, "", &to("Standing")).await.refused(words);
    server.merge(ADMIN, &made, "", &json!({"spec": {"session": null}})).await.refused(words);
    // Exports come and go with a Standing one only.
    let exports = json!({"spec": {"exports": exports("read")}});
    server.merge(ADMIN, &made, "", &exports).await.refused("exports need session.mode Standing");
    let stored = server.merge(ADMIN, &silent, "", &exports).await.ok();
    assert_eq!(stored["spec"]["exports"][0]["name"], "read");
    serde_json::from_value::<awaken_operator::api::Agent>(stored).unwrap();
}

#[tokio::test]
async fn what_identifies_an_attachment_never_changes() {
    let server = Server::new().await;
    let made = object("McpAttachment", "files", stdio());
    server.create(&made).await.ok();
    let other = json!({"spec": {"agentRef": {"name": "other"}}});
    server
        .merge(ADMIN, &made, "", &other)
        .await
        .refused("agentRef is immutable: delete the attachment");
    let other = json!({"spec": {"sandboxStdio": null, "http": {"url": "https://mcp.example.com"}}});
    server.merge(ADMIN, &made, "", &other).await.refused("the kind of target is immutable: delete");
    let same = json!({"spec": {"sandboxStdio": {"command": "another"}}});
    server.merge(ADMIN, &made, "", &same).await.ok();
}

#[tokio::test]
async fn a_name_that_fits_no_tool_id_needs_a_server_name() {
    let server = Server::new().await;
    let long = format!("{}.{}", "a".repeat(60), "b".repeat(60));
    let words = "metadata.name is longer than 63 characters and cannot stand in tool ids: set spec.serverName";
    server.create(&object("McpAttachment", &long, stdio())).await.refused(words);
    let named = with(stdio(), "/serverName", json!("files"));
    server.create(&object("McpAttachment", &long, named)).await.ok();
    server.create(&object("McpAttachment", &"c".repeat(63), stdio())).await.ok();
    server.create(&object("McpAttachment", "0.dotted.name", stdio())).await.ok();
}

/// Absent, empty and null `tools` all name nothing, and what is not named is denied by default.
#[rstest]
#[case::absent(json!({"attachment": "a"}))]
#[case::empty(json!({"attachment": "a", "tools": []}))]
#[case::null(json!({"attachment": "a", "tools": null, "defaultPermission": null}))]
#[tokio::test]
async fn nothing_named_allows_nothing(#[case] set: Value) {
    let server = Server::new().await;
    let made = server.create(&object("Agent", "coder", json!({"toolSets": [set]}))).await.ok();
    let read: awaken_operator::api::Agent = serde_json::from_value(made).unwrap();
    let set = &read.spec.tool_sets[0];
    assert_eq!((set.tools.len(), format!("{:?}", set.default_permission)), (0, "Deny".to_owned()));
}

/// `*` is a name like any other: no pattern.
#[tokio::test]
async fn a_star_is_a_name() {
    let server = Server::new().await;
    let tools = json!([{"name": "*", "permission": "Allow"}]);
    let spec = json!({"toolSets": [{"attachment": "a", "tools": tools}]});
    let made = server.create(&object("Agent", "coder", spec)).await.ok();
    assert_eq!(made["spec"]["toolSets"][0]["tools"], tools);
    assert_eq!(made["spec"]["toolSets"][0]["defaultPermission"], "Deny");
}

#[tokio::test]
async fn defaults_are_stored_and_read_back() {
    let server = Server::new().await;
    let resources = json!({"limits": {"cpu": 2, "memory": "1Gi"}});
    let made =
        object("Agent", "coder", json!({"environment": {"image": "a:1", "resources": resources}}));
    let made = server.create(&made).await.ok();
    assert_eq!(made["spec"]["environment"]["runAsUser"], 65532);
    assert_eq!(made["spec"]["environment"]["imagePullPolicy"], "IfNotPresent");
    let read: awaken_operator::api::Agent = serde_json::from_value(made).unwrap();
    let limits = read.spec.environment.unwrap().resources.unwrap().limits.unwrap();
    assert_eq!(limits["cpu"].0, "2", "a number is a quantity");

    let credential = json!({"secretKeyRef": {"name": "s", "key": "k"}});
    let spec = with(http(), "/http/credential", credential);
    let made = server.create(&object("McpAttachment", "issues", spec)).await.ok();
    assert_eq!(made["spec"]["http"]["credential"]["header"], "Authorization");
    assert_eq!(made["spec"]["http"]["credential"]["scheme"], "Bearer");
    serde_json::from_value::<awaken_operator::api::McpAttachment>(made).unwrap();
}

#[rstest]
#[case("http://mcp.example.com")]
#[case("https://mcp.example.com:8443/mcp/?k=a%2Fb&x=[1]")]
#[case("http://[fd00::1]:8080/mcp")]
#[case("http://everything.mcp-servers.svc:3001/mcp")]
#[tokio::test]
async fn an_ordinary_url_is_taken_as_written(#[case] url: &str) {
    let server = Server::new().await;
    let made = object("McpAttachment", "issues", with(http(), "/http/url", json!(url)));
    assert_eq!(server.create(&made).await.ok()["spec"]["http"]["url"], url);
}

#[rstest]
#[case("1s")]
#[case("1h")]
#[case("1m30s")]
#[case("1.5s")]
#[case("2500ms")]
#[tokio::test]
async fn an_ordinary_duration_is_taken(#[case] duration: &str) {
    let server = Server::new().await;
    let limits = json!({"startupTimeout": duration, "callTimeout": duration, "drainTimeout": "0s"});
    let made = object("McpAttachment", "files", with(stdio(), "/limits", limits));
    let made = server.create(&made).await.ok();
    serde_json::from_value::<awaken_operator::api::McpAttachment>(made).unwrap();
}
