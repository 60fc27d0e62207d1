//! Progress of one call, from the one that works to the client that asked for it.
//!
//! ```text
//!  tool ─report─► ProgressSink ─► Progress (the newest alone) ─► the stream of the call's POST
//! ```
//!
//! What is sent rises strictly, at most ten times a second; of many reports in between the last one
//! is sent. Nothing is sent once the answer is there.

use super::respond;
use crate::mcp::{
    legacy::Revision,
    wire::{self, RawJson},
};
use bytes::Bytes;
use serde::Serialize;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// Between two notices of one call.
const PAUSE: Duration = Duration::from_millis(100);
const METHOD: &str = "notifications/progress";

/// How far a call is.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressReport {
    /// How far, in a unit of the tool's choice.
    pub progress: f64,
    /// Of how much, where that is known.
    pub total: Option<f64>,
    /// For people.
    pub message: String,
}

/// Takes reports of one call. Cheap to clone; never blocks.
#[derive(Clone)]
pub struct ProgressSink(Arc<dyn Fn(ProgressReport) + Send + Sync>);

impl fmt::Debug for ProgressSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressSink")
    }
}

impl ProgressSink {
    /// Hands each report to `tell`, which must not block.
    pub fn new(tell: impl Fn(ProgressReport) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Reports. A value that is not above the one before is not sent on, nor is each of many in a
    /// short time: the last one wins.
    pub fn report(&self, progress: f64, total: Option<f64>, message: &str) {
        (self.0)(ProgressReport { progress, total, message: message.to_owned() });
    }
}

/// The progress of one call on its way to the client.
#[derive(Debug)]
pub(super) struct Progress {
    token: RawJson,
    revision: Revision,
    slot: Arc<Slot>,
    /// Nothing is sent before this.
    free: Option<Instant>,
}

#[derive(Debug, Default)]
struct Slot {
    newest: Mutex<(Option<f64>, Option<ProgressReport>)>,
    told: Notify,
}

impl Progress {
    /// What the client asked for with `_meta.progressToken`, a string or a number; none if it did
    /// not.
    pub(super) fn asked(params: &RawJson, revision: Revision) -> Option<Self> {
        // most calls ask for none, and a search is cheaper than a parse
        memchr::memmem::find(params.bytes(), b"progressToken")?;
        let part = |raw: &RawJson, name: &str| {
            let members = wire::members(raw).ok()?;
            let (_, value) = members.into_iter().find(|(key, _)| key == name)?;
            Some(raw.part(value))
        };
        let token = part(&part(params, "_meta")?, "progressToken")?;
        let fits = matches!(token.bytes().first(), Some(b'"' | b'-' | b'0'..=b'9'));
        fits.then(|| Self { token, revision, slot: Arc::default(), free: None })
    }

    /// Where the one that works reports.
    pub(super) fn sink(&self) -> ProgressSink {
        let slot = self.slot.clone();
        ProgressSink::new(move |report| slot.put(report))
    }

    /// Waits for the first report that is not sent yet.
    pub(super) async fn told(&self) {
        while !self.slot.holds() {
            self.slot.told.notified().await;
        }
    }

    /// The next notice, as an event, when it may be sent.
    pub(super) async fn next(&mut self) -> Bytes {
        loop {
            self.told().await;
            if let Some(free) = self.free {
                tokio::time::sleep_until(free).await;
            }
            if let Some(report) = self.slot.take() {
                self.free = Some(Instant::now() + PAUSE);
                return respond::event(&self.notice(&report));
            }
        }
    }

    fn notice(&self, report: &ProgressReport) -> Bytes {
        // the revision before knows no message
        let tells = self.revision >= Revision::V2025_03_26 && !report.message.is_empty();
        let params = Params {
            token: &self.token,
            progress: number(report.progress),
            total: report.total.filter(|total| total.is_finite()).map(number),
            message: tells.then_some(&*report.message),
        };
        let params = RawJson::of(&params).expect("numbers and texts are JSON");
        wire::notification(METHOD, Some(&params))
    }
}

#[derive(Serialize)]
struct Params<'a> {
    /// As it came, however big its number is.
    #[serde(rename = "progressToken")]
    token: &'a RawJson,
    progress: serde_json::Number,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<serde_json::Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

/// Whole numbers without a point. The value is finite.
fn number(value: f64) -> serde_json::Number {
    let whole = value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0;
    let fraction = || serde_json::Number::from_f64(value).filter(|_| !whole);
    fraction().unwrap_or_else(|| (value as i64).into())
}

impl Slot {
    fn put(&self, report: ProgressReport) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let rises = report.progress.is_finite() && newest.0.is_none_or(|p| report.progress > p);
        if rises {
            *newest = (Some(report.progress), Some(report));
            drop(newest);
            self.told.notify_one();
        }
    }

    fn holds(&self) -> bool {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).1.is_some()
    }

    fn take(&self) -> Option<ProgressReport> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).1.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn asked(params: &'static str) -> Option<Progress> {
        Progress::asked(&RawJson::from_static(params), Revision::LATEST)
    }

    fn text(event: &Bytes) -> serde_json::Value {
        let text = std::str::from_utf8(event).unwrap();
        let data = text.lines().find_map(|l| l.strip_prefix("data: ")).unwrap();
        serde_json::from_str(data).unwrap()
    }

    #[rstest]
    #[case::string(r#"{"_meta":{"progressToken":"t\u0031"}}"#, Some(r#""t\u0031""#))]
    #[case::number(
        r#"{"_meta":{"progressToken": 12345678901234567890}}"#,
        Some("12345678901234567890")
    )]
    #[case::none(r#"{"_meta":{}}"#, None)]
    #[case::elsewhere(r#"{"progressToken":1}"#, None)]
    #[case::in_the_arguments(r#"{"arguments":{"_meta":{"progressToken":1}}}"#, None)]
    #[case::null(r#"{"_meta":{"progressToken":null}}"#, None)]
    #[case::object(r#"{"_meta":{"progressToken":{}}}"#, None)]
    #[case::meta_is_no_object(r#"{"_meta":"progressToken"}"#, None)]
    fn tokens(#[case] params: &'static str, #[case] token: Option<&str>) {
        let asked = asked(params);
        assert_eq!(asked.as_ref().map(|p| p.token.as_str()), token);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_sent_rises_and_the_last_of_many_wins() {
        let mut progress = asked(r#"{"_meta":{"progressToken":"t"}}"#).unwrap();
        let (sink, begun) = (progress.sink(), Instant::now());
        sink.report(1.0, Some(4.0), "one");
        let first = text(&progress.next().await);
        assert_eq!(
            first["params"],
            serde_json::json!({"progressToken": "t", "progress": 1, "total": 4, "message": "one"})
        );
        assert_eq!((first["method"].as_str(), begun.elapsed()), (Some(METHOD), Duration::ZERO));
        for (value, message) in [(2.5, "two"), (3.0, "three"), (3.0, "again"), (1.0, "back")] {
            sink.report(value, None, message);
        }
        sink.report(f64::NAN, None, "not a number");
        sink.report(f64::INFINITY, None, "without end");
        let second = text(&progress.next().await);
        assert_eq!(
            (&second["params"]["progress"], &second["params"]["message"]),
            (&3.into(), &"three".into())
        );
        assert!(second["params"].get("total").is_none());
        assert_eq!(begun.elapsed(), PAUSE);
        let more = tokio::time::timeout(Duration::from_secs(9), progress.next()).await;
        assert!(more.is_err(), "nothing else");
    }

    #[tokio::test]
    async fn a_client_of_the_first_revision_gets_no_message_and_a_big_token_stays() {
        let params = RawJson::from_static(r#"{"_meta":{"progressToken":12345678901234567890123}}"#);
        let mut progress = Progress::asked(&params, Revision::V2024_11_05).unwrap();
        progress.sink().report(0.5, None, "half");
        let event = progress.next().await;
        let event = std::str::from_utf8(&event).unwrap();
        assert!(event.contains(r#""progressToken":12345678901234567890123"#), "{event}");
        assert!(event.contains(r#""progress":0.5"#) && !event.contains("half"), "{event}");
    }
}
