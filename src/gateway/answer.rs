//! The one translation from a refusal to HTTP, for everything that is refused before MCP begins
//! and for the REST routes: `{"error": {"type", "reason", "message"}}`.

use crate::domain::reason::Reason;
use axum::{
    Json,
    http::{
        HeaderValue, StatusCode,
        header::{RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use serde_json::json;

/// When a caller may come again to what passes by itself, in seconds: `Retry-After`, and
/// `data.retryAfter` of JSON-RPC errors.
pub const RETRY_SECONDS: u32 = 1;

/// A refused HTTP request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} {reason}: {message}")]
pub struct HttpRefusal {
    /// The status.
    pub status: StatusCode,
    /// Why, for programs.
    pub reason: Reason,
    /// Why, for people.
    pub message: String,
}

impl HttpRefusal {
    /// 400: the request cannot be used.
    pub fn invalid(reason: Reason, message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, reason, message: message.into() }
    }

    /// 401 with a challenge.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        let status = StatusCode::UNAUTHORIZED;
        Self { status, reason: Reason::Unauthenticated, message: message.into() }
    }

    /// 403: the caller may know of the thing, but not do this.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self { status: StatusCode::FORBIDDEN, reason: Reason::Forbidden, message: message.into() }
    }

    /// 404: there is no such thing, or the caller may not know of it.
    pub fn not_found() -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            reason: Reason::NotFound,
            message: Reason::NotFound.meaning().to_owned(),
        }
    }

    /// 503 with Retry-After.
    pub fn unavailable(reason: Reason, message: impl Into<String>) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, reason, message: message.into() }
    }

    /// 500: it is our fault.
    pub fn internal(reason: Reason, message: impl Into<String>) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, reason, message: message.into() }
    }

    fn type_(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        }
    }
}

impl IntoResponse for HttpRefusal {
    fn into_response(self) -> Response {
        let body = json!({"error": {
            "type": self.type_(), "reason": self.reason.as_str(), "message": self.message,
        }});
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = r#"Bearer realm="awaken-gateway", error="invalid_token""#;
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        }
        response
    }
}
