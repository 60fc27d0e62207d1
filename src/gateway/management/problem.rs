//! Why a management tool did not do what was asked: a reason of the closed list, the cause and the
//! next step. The one place that reads what the API server says when it says no.

use super::text::{one_line, shown};
use crate::domain::reason::Reason;
use kube::core::response::{Status, StatusCause};

/// Causes that are told, of all that the API server names.
const CAUSES: usize = 5;
/// The longest message, in bytes.
const LONGEST: usize = 2048;

/// A failure, for the model that called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Why, for programs.
    pub reason: Reason,
    /// The cause and the next step.
    pub message: String,
    /// The argument, or the field of the object, that it is about.
    pub field: Option<String>,
}

impl Problem {
    /// A problem whose cause is this; the next step is the reason's own.
    pub fn new(reason: Reason, cause: impl AsRef<str>) -> Self {
        let cause = shown(&one_line(cause.as_ref()), LONGEST);
        Self { reason, message: cause, field: None }.next(reason.next_step())
    }

    /// With another next step in place of the reason's own.
    #[must_use]
    pub fn next(mut self, step: &str) -> Self {
        let own = self.reason.next_step();
        if let Some(cause) = (!own.is_empty()).then(|| self.message.strip_suffix(own)).flatten() {
            self.message = cause.trim_end().to_owned();
        }
        if !step.is_empty() {
            self.message = format!("{} {step}", self.message);
        }
        self
    }

    /// About this argument or field.
    #[must_use]
    pub fn about(mut self, field: impl Into<String>) -> Self {
        self.field = Some(shown(&one_line(&field.into()), 256));
        self
    }

    /// An argument that cannot be used.
    pub fn argument(field: &str, problem: &str) -> Self {
        let cause = format!("Argument `{}`: {problem}.", shown(&one_line(field), 256));
        Self::new(Reason::InvalidArguments, cause).about(field)
    }

    /// There is no such object.
    pub fn missing(kind: &str, namespace: &str, name: &str) -> Self {
        let list = match kind {
            "Agent" => "agents_list",
            "Session" => "sessions_list",
            _ => "attachments_list",
        };
        Self::new(Reason::NotFound, format!("There is no {kind} {name} in {namespace}."))
            .next(&format!("Look up its name with {list}."))
    }

    /// The object is being deleted: what is written to it now goes with it.
    pub fn leaving(kind: &str, namespace: &str, name: &str) -> Self {
        let cause = format!("The {kind} {name} in {namespace} is being deleted.");
        Self::new(Reason::FieldConflict, cause)
            .next("Wait until it is gone, then apply it anew; its finalizers may hold it.")
    }

    /// The caller does not want it any more.
    pub fn cancelled(what: &str) -> Self {
        Self::new(Reason::Cancelled, what)
    }

    /// What the API server answered, or why it did not, to a request that `doing` names.
    pub fn of_kube(doing: &str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(doing, status),
            other => Self::unavailable(doing, &other.to_string()),
        }
    }

    /// The API server does not answer, or not with an answer.
    pub fn unavailable(doing: &str, why: &str) -> Self {
        Self::new(Reason::ApiServerUnavailable, format!("{doing}: {}.", shown(&one_line(why), 512)))
    }

    fn of_status(doing: &str, status: &Status) -> Self {
        let causes = status.details.as_ref().map_or(&[][..], |d| &d.causes);
        let said = shown(&one_line(&status.message), LONGEST / 2);
        match status.code {
            404 => Self::new(Reason::NotFound, format!("{doing}: {said}.")),
            403 => Self::forbidden(doing, &said),
            409 if status.reason == "AlreadyExists" => {
                Self::new(Reason::AlreadyExists, format!("{doing}: {said}."))
            }
            409 if causes.iter().any(|c| c.reason == "FieldManagerConflict") => {
                Self::conflict(causes)
            }
            409 => Self::new(Reason::FieldConflict, format!("{doing}: {said}."))
                .next("Read the object again and repeat the call."),
            400 | 413 | 422 => Self::invalid(doing, &said, causes),
            code => Self::unavailable(doing, &format!("{code} {said}")),
        }
    }

    fn forbidden(doing: &str, said: &str) -> Self {
        let problem = Self::new(Reason::Forbidden, format!("{doing}: {said}."));
        if said.contains(" cannot ") {
            problem.next("Ask whoever runs the installation to give that account the right.")
        } else {
            problem.next("Read the message; a quota or an admission policy said no.")
        }
    }

    fn conflict(causes: &[StatusCause]) -> Self {
        let owned = causes.iter().take(CAUSES).map(|cause| {
            let manager = cause.message.trim_start_matches("conflict with ");
            format!("{} belongs to {}", cause.field.trim_start_matches('.'), one_line(manager))
        });
        let owned = owned.collect::<Vec<_>>().join("; ");
        let more = more_than(causes.len());
        let field = causes.first().map_or("", |c| c.field.trim_start_matches('.'));
        Self::new(
            Reason::FieldConflict,
            format!("Another field manager set these fields to other values: {owned}{more}."),
        )
        .about(field)
    }

    fn invalid(doing: &str, said: &str, causes: &[StatusCause]) -> Self {
        let told = causes.iter().filter(|c| !c.message.is_empty()).take(CAUSES).map(|cause| {
            let message = shown(&one_line(&cause.message), 300);
            if cause.field.is_empty() { message } else { format!("{}: {message}", cause.field) }
        });
        let told = told.collect::<Vec<_>>().join("; ");
        let told = if told.is_empty() { said.to_owned() } else { told + &more_than(causes.len()) };
        let problem = Self::new(
            Reason::InvalidArguments,
            format!("{doing}: the API server refuses it: {told}."),
        )
        .next("Mend what the message names and repeat the call.");
        match causes.iter().map(|c| &c.field).find(|f| !f.is_empty() && *f != "<nil>") {
            Some(field) => problem.about(field.clone()),
            None => match quoted_field(said) {
                Some(field) => problem.about(field),
                None => problem,
            },
        }
    }
}

fn more_than(count: usize) -> String {
    if count > CAUSES { format!("; and {} more", count - CAUSES) } else { String::new() }
}

/// The field in `unknown field "spec.x"`.
fn quoted_field(said: &str) -> Option<&str> {
    said.split_once("field \"")?.1.split_once('"').map(|(field, _)| field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(status: serde_json::Value) -> Problem {
        let status: Status = serde_json::from_value(status).unwrap();
        Problem::of_kube("Applying files", &kube::Error::Api(status.boxed()))
    }

    #[test]
    fn each_no_of_the_api_server_has_its_reason() {
        for (code, reason, expected) in [
            (400, "BadRequest", Reason::InvalidArguments),
            (403, "Forbidden", Reason::Forbidden),
            (404, "NotFound", Reason::NotFound),
            (409, "AlreadyExists", Reason::AlreadyExists),
            (409, "Conflict", Reason::FieldConflict),
            (413, "", Reason::InvalidArguments),
            (422, "Invalid", Reason::InvalidArguments),
            (401, "Unauthorized", Reason::ApiServerUnavailable),
            (429, "TooManyRequests", Reason::ApiServerUnavailable),
            (500, "InternalError", Reason::ApiServerUnavailable),
            (503, "", Reason::ApiServerUnavailable),
        ] {
            let problem = said(json!({"code": code, "reason": reason, "message": "no such luck"}));
            assert_eq!(problem.reason, expected, "{code} {reason}");
            assert!(problem.message.contains("no such luck"), "{}", problem.message);
        }
    }

    #[test]
    fn a_conflict_names_field_manager_and_the_way_out() {
        let problem = said(json!({"code": 409, "reason": "Conflict", "message": "Apply failed",
            "details": {"causes": [
                {"reason": "FieldManagerConflict", "field": ".spec.http.url",
                 "message": "conflict with \"kustomize-controller\" using awaken.dev/v1alpha1"}]}}));
        assert_eq!(problem.field.as_deref(), Some("spec.http.url"));
        assert!(problem.message.contains("kustomize-controller"), "{}", problem.message);
        assert!(problem.message.contains("force"), "{}", problem.message);
    }

    #[test]
    fn an_invalid_object_names_its_field() {
        let many: Vec<_> = (0..9)
            .map(|i| json!({"field": format!("spec.args[{i}]"), "message": format!("wrong {i}")}))
            .collect();
        let problem = said(json!({"code": 422, "message": "x", "details": {"causes": many}}));
        assert_eq!(problem.field.as_deref(), Some("spec.args[0]"));
        assert!(problem.message.contains("wrong 4; and 4 more"), "{}", problem.message);
        let strict =
            json!({"code": 400, "message": "strict decoding error: unknown field \"spec.x\""});
        assert_eq!(said(strict).field.as_deref(), Some("spec.x"));
    }

    #[test]
    fn messages_are_bounded_and_of_one_line() {
        let problem = said(json!({"code": 422, "message": "€\n".repeat(100_000)}));
        assert!(problem.message.len() < 4096 && !problem.message.contains('\n'));
    }

    #[test]
    fn the_next_step_can_be_another_one() {
        let problem = Problem::new(Reason::Forbidden, "No.");
        assert_eq!(problem.message, format!("No. {}", Reason::Forbidden.next_step()));
        assert_eq!(problem.next("Go.").message, "No. Go.");
    }
}
