//! Whether what callers were told, what the trace says and what the servers counted agree.

use crate::{
    fleet::Fleet,
    load::{Calls, Got},
    support::{LIMIT, until},
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What the servers counted before a step.
pub struct Before(BTreeMap<String, u64>);

impl Before {
    /// Asks the stdio servers.
    pub async fn read(fleet: &Fleet) -> Self {
        let mut all = BTreeMap::new();
        for name in fleet.stdio() {
            all.insert(name.clone(), fleet.counter(&name).await);
        }
        Self(all)
    }
}

/// The id in the arguments of a recorded call; empty for none.
pub fn id_of(record: &Value) -> String {
    let text = record["arguments"]["json"].as_str().unwrap_or("{}");
    let arguments: Value = serde_json::from_str(text).expect("arguments are JSON");
    arguments["id"].as_str().unwrap_or_default().to_owned()
}

/// The records of calls with these ids, by id: intents, and outcomes.
#[derive(Default)]
struct Recorded {
    intents: HashMap<String, Vec<Value>>,
    outcomes: HashMap<String, Vec<Value>>,
}

impl Recorded {
    fn of(trace: Vec<Value>, label: &str) -> Self {
        let mut this = Self::default();
        for record in trace {
            let call = record["call"].as_str().unwrap_or_default().to_owned();
            match record["kind"].as_str() {
                Some("Intent") => {
                    let id = id_of(&record);
                    if id.starts_with(label) {
                        this.intents.entry(id).or_default().push(record);
                    }
                }
                Some("Outcome") => this.outcomes.entry(call).or_default().push(record),
                _ => {}
            }
        }
        this
    }

    fn ends(&self, intent: &Value) -> &[Value] {
        let call = intent["call"].as_str().expect("a call");
        self.outcomes.get(call).map_or(&[], Vec::as_slice)
    }
}

/// Each call that was made has at most one intent, each intent one outcome, each answer is the
/// outcome on record, and no server ran more than it was sent. `label` begins the ids of the step.
/// The counters are compared where `before` is given: where no server was replaced.
pub async fn agree(fleet: &Fleet, label: &str, calls: &Calls, before: Option<Before>) {
    let seen = fleet.seen().await;
    for (name, _) in &fleet.sessions {
        let recorded =
            until(&format!("every call of {name} has its end on record"), LIMIT, || async {
                let recorded = Recorded::of(fleet.trace(name).await, &format!("{label}."));
                let open =
                    recorded.intents.values().flatten().find(|i| recorded.ends(i).len() != 1);
                match open {
                    None => Ok(recorded),
                    Some(open) => Err(format!("{open} ended by {:#?}", recorded.ends(open))),
                }
            })
            .await;
        let own: Vec<_> =
            calls.0.iter().filter(|c| &c.session == name && !c.id.is_empty()).collect();
        for call in &own {
            let intents = recorded.intents.get(&call.id).map_or(&[][..], Vec::as_slice);
            let ends: Vec<_> = intents.iter().flat_map(|i| recorded.ends(i)).collect();
            assert!(intents.len() <= 1, "{call:?} {intents:#?}");
            match call.got {
                Got::Answer => assert!(
                    ends.len() == 1 && ends[0]["outcome"] == "Succeeded",
                    "answered, and on record as {ends:#?}: {call:?}"
                ),
                Got::Later | Got::NoJournal => {
                    assert!(intents.is_empty(), "refused, but sent: {call:?} {intents:#?}");
                }
                Got::Unsent => assert!(
                    ends.len() == 1 && ends[0]["outcome"] == "TransportError",
                    "not sent, and on record as {ends:#?}: {call:?}"
                ),
                Got::Unknown | Got::Nothing | Got::Other => {}
            }
        }
        let numbers: Vec<_> = own.iter().filter_map(|c| c.number).collect();
        if let Some(Before(before)) = &before
            && let Some(before) = before.get(name)
        {
            let distinct: BTreeSet<_> = numbers.iter().collect();
            assert_eq!(distinct.len(), numbers.len(), "{name}: a number was answered twice");
            let ran = fleet.counter(name).await - before;
            let sent = recorded.intents.len() as u64;
            let known = numbers.len() as u64;
            assert!(
                known <= ran && ran <= sent,
                "{name}: {known} answers, {ran} runs, {sent} sent"
            );
        }
    }
    let mut requests = HashMap::<String, u32>::new();
    for request in seen {
        let Ok(body) = serde_json::from_str::<Value>(&request.body) else { continue };
        if let Some(id) = body["params"]["arguments"]["id"].as_str() {
            *requests.entry(id.to_owned()).or_default() += 1;
        }
    }
    for call in &calls.0 {
        let came = requests.get(&call.id).copied().unwrap_or(0);
        assert!(came <= 1, "it came {came} times: {call:?}");
        let http = fleet.http().contains(&call.session);
        assert!(!http || call.got != Got::Answer || came == 1, "never came: {call:?}");
    }
}
