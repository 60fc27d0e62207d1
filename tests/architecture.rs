//! The walls of the house: which folder may use which, what stays out of the pure rooms, and how
//! long a file may be. The table is the one in `docs/architecture.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Folder, and the folders of `src/` that it may name.
const MAY_USE: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("process", &["domain"]),
    ("api", &["domain"]),
    ("crds", &["api"]),
    ("journal", &["domain", "process"]),
    ("mcp", &["domain", "process"]),
    ("controller", &["domain", "api", "process"]),
    ("gateway", &["domain", "api", "journal", "mcp", "process"]),
];

/// Path prefix, words that must not stand there outside comments and inline tests, and why.
const BANNED: &[(&str, &[&str], &str)] = &[
    (
        "domain/",
        &[
            "async fn",
            "tokio",
            "kube::",
            "k8s_openapi",
            "axum",
            "reqwest",
            "rusqlite",
            "std::fs",
            "std::env",
            "std::net",
            "std::time",
            "::now()",
            "rand::",
            "getrandom",
            "Uuid::new",
        ],
        "domain is pure",
    ),
    ("api/", &["Client", "tokio", "async fn"], "api holds types only"),
    ("mcp/", &["kube::", "k8s_openapi", "crate::api"], "mcp knows no CRD"),
    ("controller/resolve", &[".patch(", ".create(", ".delete(", ".replace("], "resolve only reads"),
    ("controller/plan", &["Client", "Api::", "async fn", "::now()"], "plan is pure"),
    ("controller/build", &["Client", "Api::", "async fn", "::now()"], "build is pure"),
    (
        "gateway/call",
        &["crate::api", "kube::", "k8s_openapi", "axum"],
        "the call path knows no API server",
    ),
    (
        "gateway/catalog",
        &["crate::api", "kube::", "k8s_openapi", "axum"],
        "the catalog is plain data",
    ),
    ("", &["super::super"], "name the path from the crate"),
];

/// In `gateway/`, only these files name `api`.
const GATEWAY_API: &[&str] =
    &["gateway/index", "gateway/host", "gateway/approval", "gateway/management", "gateway/rest"];
/// In `gateway/`, only these append calls to the journal, or (`host`) lifecycle records.
const GATEWAY_APPEND: &[&str] =
    &["gateway/call", "gateway/recover", "gateway/management", "gateway/host"];
/// In `gateway/`, only these raise epochs.
const GATEWAY_EPOCHS: &[&str] = &["gateway/host"];
/// In `controller/`, only these write to the API server.
const CONTROLLER_WRITE: &[&str] = &["controller/apply"];

const MAX_CODE_LINES: usize = 500;

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|x| x == "rs") {
            out.push(path);
        }
    }
}

/// The code above the inline tests, without line comments. Tests in a file of their own end nothing.
fn code_of(text: &str) -> String {
    let (mut code, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("#[cfg(test)]\nmod ") {
        code.push_str(before);
        rest = match after.split_once('\n') {
            Some((name, after)) if name.ends_with(';') => after,
            _ => "",
        };
    }
    code.push_str(rest);
    code.lines().map(|l| l.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The heads of every path that begins with `crate::`, groups included.
fn folders_named(code: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            None => {
                out.insert(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
            }
            Some(group) => out.extend(heads_of_group(group)),
        }
    }
    out
}

fn heads_of_group(group: &str) -> Vec<String> {
    let (mut out, mut head, mut depth, mut taking) = (vec![], String::new(), 1, true);
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => {
                out.push(std::mem::take(&mut head));
                taking = true;
            }
            ':' if depth == 1 => taking = false,
            c if depth == 1 && taking && (c.is_alphanumeric() || c == '_') => head.push(c),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    out.push(head);
    out
}

/// The files below this folder of the package, but for tests in files of their own.
fn sources_of(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files = vec![];
    rust_files(&root, &mut files);
    let named = |p: PathBuf| {
        let relative = p.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        (relative, fs::read_to_string(&p).unwrap())
    };
    files.retain(|p| !p.ends_with("tests.rs"));
    files.into_iter().map(named).collect()
}

fn sources() -> Vec<(String, String)> {
    sources_of("src")
}

/// What a Session pod runs stays small: no Kubernetes, no server framework, no database.
const SHIM_BANNED: &[&str] =
    &["kube::", "k8s_openapi", "awaken_operator", "axum", "hyper::", "reqwest", "rusqlite"];

#[test]
fn the_shim_knows_nothing_of_the_rest() {
    let mut bad = vec![];
    for (path, text) in sources_of("shim/src") {
        let code = code_of(&text);
        let words = SHIM_BANNED.iter().filter(|w| code.contains(**w));
        bad.extend(words.map(|word| format!("shim/src/{path}: `{word}`")));
    }
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
}

/// Whether the code has the word; a folder of ours also as a part of a group of imports.
fn names(code: &str, word: &str) -> bool {
    match word.strip_prefix("crate::") {
        Some(folder) if !folder.contains(':') => folders_named(code).contains(folder),
        _ => code.contains(word),
    }
}

fn starts_with_any(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|p| path.starts_with(p))
}

#[test]
fn folders_use_only_what_the_table_allows() {
    let rules: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    let mut bad = vec![];
    for (path, text) in sources() {
        let home = path.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
        if ["lib", "main", "flags"].contains(&home.as_str()) {
            continue;
        }
        let Some(allowed) = rules.get(home.as_str()) else {
            bad.push(format!("{path}: its folder has no row in the table"));
            continue;
        };
        for used in folders_named(&code_of(&text)) {
            if used != home
                && rules.contains_key(used.as_str())
                && !allowed.contains(&used.as_str())
            {
                bad.push(format!("{path}: {home} may not use {used}"));
            }
        }
    }
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
}

#[test]
fn words_stay_out_of_rooms_where_they_do_not_belong() {
    let mut bad = vec![];
    for (path, text) in sources() {
        let code = code_of(&text);
        for (_, words, why) in BANNED.iter().filter(|(p, ..)| path.starts_with(p)) {
            for word in words.iter().filter(|w| names(&code, w)) {
                bad.push(format!("{path}: `{word}`: {why}"));
            }
        }
        if path.starts_with("gateway/")
            && !starts_with_any(&path, GATEWAY_API)
            && folders_named(&code).contains("api")
        {
            bad.push(format!("{path}: only {GATEWAY_API:?} name the API types"));
        }
        if path.starts_with("gateway/")
            && !starts_with_any(&path, GATEWAY_APPEND)
            && code.contains(".append(")
        {
            bad.push(format!("{path}: only {GATEWAY_APPEND:?} append to the journal"));
        }
        if path.starts_with("gateway/")
            && !starts_with_any(&path, GATEWAY_EPOCHS)
            && code.contains("raise_epoch")
        {
            bad.push(format!("{path}: only {GATEWAY_EPOCHS:?} raise epochs"));
        }
        let writes = [".patch(", ".patch_status(", ".create(", ".delete(", ".replace_status("];
        if path.starts_with("controller/") && !starts_with_any(&path, CONTROLLER_WRITE) {
            for word in writes.iter().filter(|w| code.contains(**w)) {
                bad.push(format!("{path}: `{word}`: only {CONTROLLER_WRITE:?} write"));
            }
        }
    }
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    let mut bad = vec![];
    for (path, text) in sources().into_iter().chain(sources_of("shim/src")) {
        let lines = code_of(&text).lines().filter(|l| !l.trim().is_empty()).count();
        if lines > MAX_CODE_LINES {
            bad.push(format!("{path}: {lines} lines of code, at most {MAX_CODE_LINES}"));
        }
        if !text.starts_with("//!") {
            bad.push(format!("{path}: does not begin with //! and its job"));
        }
    }
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
}

#[test]
fn the_checks_see_what_they_look_for() {
    let code = code_of(
        "use crate::{api::agent, domain::{a, b}};\nlet x = crate::gateway::call; // crate::journal\n#[cfg(test)]\nmod tests { use crate::check; }",
    );
    let named: Vec<_> = folders_named(&code).into_iter().collect();
    assert_eq!(named, ["api", "domain", "gateway"]);
    assert!(names(&code, "crate::api") && !names(&code, "crate::journal"));
    let behind =
        code_of("mod a;\n#[cfg(test)]\nmod tests;\nuse crate::api;\n#[cfg(test)]\nmod t {");
    assert!(behind.contains("crate::api") && !behind.contains("mod t"), "{behind}");
}
