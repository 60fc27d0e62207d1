//! Pages over several namespaces: the API server's own pages, one namespace after the other, under
//! one cursor. A page ends when it has enough rows or enough bytes.

use super::{
    Desk,
    cluster::{Kind, read},
    names::{Limit, Namespace, USUAL},
    problem::Problem,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use kube::{
    Api,
    api::ListParams,
    core::{DeserializeGuard, ObjectList},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rows that are asked for at one time.
const CHUNK: u32 = 50;
/// A page ends after this many bytes of rows.
const ENOUGH_BYTES: usize = 64 * 1024;
/// Objects that are asked for at one time where all are wanted.
const MANY: u32 = 500;
/// Requests for one page, or one whole list: with a filter, most of them may give nothing.
const REQUESTS: usize = 40;

/// Where a page begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    /// The namespace.
    n: String,
    /// The API server's own token; none for the namespace's first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    c: Option<String>,
}

impl Place {
    fn write(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a place is JSON"))
    }

    fn read(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }
}

/// What to list.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Only there.
    pub namespace: Option<&'a Namespace>,
    /// Rows on the page.
    pub limit: Option<Limit>,
    /// Where the last page ended.
    pub from: Option<&'a str>,
}

/// What every list says of what it left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct More {
    /// Whether there is more than these rows.
    pub more: bool,
    /// The argument `continue` of the next page.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl More {
    /// The last line of a list.
    pub fn text(&self) -> String {
        match &self.next {
            None => String::new(),
            Some(next) => format!("There is more: call again with continue = {next}\n"),
        }
    }
}

/// A page of rows. `row` leaves out what it gives no row for.
///
/// # Errors
/// A namespace that is not open to these tools, a cursor that is none or too old, what the API
/// server says.
pub async fn page<K: Kind, R: Serialize>(
    desk: &Desk,
    ask: Ask<'_>,
    row: impl Fn(DeserializeGuard<K>) -> Option<R>,
) -> Result<(Vec<R>, More), Problem> {
    let namespaces = match ask.namespace {
        Some(namespace) => vec![desk.open(namespace)?.to_owned()],
        None => desk.all_open()?,
    };
    let stale = || Problem::argument("continue", "is no `continue` of this list: begin without it");
    let (mut at, mut token) = (0, None);
    if let Some(from) = ask.from {
        let place = Place::read(from).ok_or_else(stale)?;
        at = namespaces.iter().position(|n| *n == place.n).ok_or_else(stale)?;
        token = place.c;
    }
    let limit = ask.limit.map_or(USUAL, |l| l.0) as usize;
    let (mut rows, mut bytes, mut requests) = (vec![], 0, 0);
    while at < namespaces.len() && rows.len() < limit && bytes < ENOUGH_BYTES && requests < REQUESTS
    {
        let chunk = u32::try_from(limit - rows.len()).unwrap_or(CHUNK).min(CHUNK);
        let asked = token.clone();
        let Some(list) = list(desk, &namespaces[at], asked, chunk).await? else {
            if requests > 0 && token.is_some() {
                // it was given within this page: what is there is one, and the next call tells
                break;
            }
            return Err(Problem::argument("continue", "is too old: begin the list without it"));
        };
        requests += 1;
        for row in list.items.into_iter().filter_map(&row) {
            bytes += serde_json::to_vec(&row).map_or(0, |text| text.len());
            rows.push(row);
        }
        token = list.metadata.continue_.filter(|token| !token.is_empty());
        if token.is_none() {
            at += 1;
        }
    }
    let next = namespaces.get(at).map(|n| Place { n: n.clone(), c: token }.write());
    Ok((rows, More { more: next.is_some(), next }))
}

/// Rows of every object of a kind in a namespace.
#[derive(Debug)]
pub struct Whole<R> {
    /// The rows.
    pub rows: Vec<R>,
    /// Why there may be more, for people; none where these are all.
    pub incomplete: Option<String>,
}

/// Rows of every object of a kind in a namespace, up to 20,000 objects; `row` leaves out what it
/// gives no row for. A list that expires while it is read is begun again once.
///
/// # Errors
/// What the API server says.
pub async fn whole<K: Kind, R>(
    desk: &Desk,
    namespace: &str,
    mut row: impl FnMut(DeserializeGuard<K>) -> Option<R>,
) -> Result<Whole<R>, Problem> {
    let kind = K::kind(&());
    let (mut rows, mut token, mut expired) = (vec![], None, false);
    let mut seen = 0;
    for _ in 0..REQUESTS {
        let Some(list) = list(desk, namespace, token.take(), MANY).await? else {
            if expired {
                let why = format!("the list of {kind}s expired twice while it was read.");
                return Ok(Whole { rows, incomplete: Some(why) });
            }
            (expired, seen) = (true, 0);
            rows.clear();
            continue;
        };
        seen += list.items.len();
        rows.extend(list.items.into_iter().filter_map(&mut row));
        token = list.metadata.continue_.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok(Whole { rows, incomplete: None });
        }
    }
    let why = format!("{namespace} has more than the {seen} {kind}s that were read.");
    Ok(Whole { rows, incomplete: Some(why) })
}

/// One list of the API server; none where the token is too old.
async fn list<K: Kind>(
    desk: &Desk,
    namespace: &str,
    token: Option<String>,
    limit: u32,
) -> Result<Option<ObjectList<DeserializeGuard<K>>>, Problem> {
    let params = ListParams { continue_token: token, ..ListParams::default() }.limit(limit);
    let api: Api<DeserializeGuard<K>> = Api::namespaced(desk.client.clone(), namespace);
    let listing = async {
        match api.list(&params).await {
            Err(kube::Error::Api(status)) if status.code == 410 => Ok(None),
            other => other.map(Some),
        }
    };
    read(&format!("Listing {}s in {namespace}", K::kind(&())), listing).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_comes_back_and_nothing_else_is_one() {
        for c in [None, Some("token+/=".to_owned())] {
            let place = Place { n: "team-a".to_owned(), c };
            assert_eq!(Place::read(&place.write()), Some(place));
        }
        for wrong in ["", "x", "e30", "eyJuIjoxfQ", "\u{1F600}"] {
            assert_eq!(Place::read(wrong), None, "{wrong}");
        }
    }
}
