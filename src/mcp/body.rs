//! Reading a body up to a limit, without a copy where it came in one piece.

use crate::mcp::wire::{Id, IdScan};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body;
use std::time::Duration;

/// So much is set aside at once for a body that says its length.
const ROOM: u64 = 1 << 20;

/// Why there is no body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// It is over the limit. The id of the message, if it could be told.
    TooLarge(Option<Id>),
    /// It broke off.
    Broken,
    /// Its next piece did not come within the time for it.
    Silent,
}

/// Reads a body of up to `limit` bytes. One over the limit is read on, and thrown away, up to
/// `skip` bytes: read to its end the connection stays, and its id may be found. Each
/// piece of it comes within `silence` of the one before.
///
/// # Errors
/// A body over the limit, one that broke off, or one that is silent.
pub(super) async fn read<B>(
    mut body: B,
    limit: usize,
    skip: u64,
    silence: Duration,
) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let announced = body.size_hint().lower();
    let Some(first) = next(&mut body, silence).await? else { return Ok(Bytes::new()) };
    if first.len() > limit || announced > limit as u64 {
        return Err(skip_rest(body, &first, skip, silence).await);
    }
    let Some(second) = next(&mut body, silence).await? else { return Ok(first) };
    let room = announced.min(ROOM) as usize;
    let mut whole = BytesMut::with_capacity(room.max(first.len() + second.len()));
    whole.extend_from_slice(&first);
    let mut piece = second;
    loop {
        if whole.len() + piece.len() > limit {
            whole.extend_from_slice(&piece);
            return Err(skip_rest(body, &whole, skip, silence).await);
        }
        whole.extend_from_slice(&piece);
        match next(&mut body, silence).await? {
            Some(next) => piece = next,
            None => return Ok(whole.freeze()),
        }
    }
}

async fn next<B>(body: &mut B, silence: Duration) -> Result<Option<Bytes>, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    loop {
        let frame = tokio::time::timeout(silence, body.frame()).await;
        let Some(frame) = frame.map_err(|_| BodyError::Silent)? else { return Ok(None) };
        match frame.map_err(|_| BodyError::Broken)?.into_data() {
            Ok(data) if !data.is_empty() => return Ok(Some(data)),
            _ => {}
        }
    }
}

async fn skip_rest<B>(mut body: B, start: &[u8], skip: u64, silence: Duration) -> BodyError
where
    B: Body<Data = Bytes> + Unpin,
{
    let (mut scan, mut read) = (IdScan::default(), start.len() as u64);
    scan.push(start);
    while read <= skip {
        match next(&mut body, silence).await {
            Ok(Some(piece)) => {
                read += piece.len() as u64;
                scan.push(&piece);
            }
            Ok(None) => break,
            Err(error) => return error,
        }
    }
    BodyError::TooLarge(scan.id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use futures::{StreamExt as _, stream};
    use std::convert::Infallible;

    async fn read(body: Body, limit: usize, skip: u64) -> Result<Bytes, BodyError> {
        super::read(body, limit, skip, Duration::from_secs(30)).await
    }

    fn pieces(pieces: &[&str]) -> Body {
        let pieces: Vec<Result<_, Infallible>> =
            pieces.iter().map(|p| Ok(Bytes::copy_from_slice(p.as_bytes()))).collect();
        Body::from_stream(stream::iter(pieces))
    }

    #[tokio::test]
    async fn one_piece_is_not_copied() {
        let whole = Bytes::from("x".repeat(100));
        let read = read(Body::from(whole.clone()), 100, 0).await.unwrap();
        assert_eq!(read.as_ptr(), whole.as_ptr());
    }

    #[tokio::test]
    async fn pieces_are_joined_up_to_the_limit() {
        assert_eq!(read(pieces(&["ab", "", "cd", "e"]), 5, 0).await.unwrap(), "abcde");
        assert_eq!(read(pieces(&[]), 5, 0).await.unwrap(), "");
        assert_eq!(read(pieces(&["ab", "cd", "e"]), 4, 0).await, Err(BodyError::TooLarge(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_be_slow_but_not_silent() {
        let pieces = |second: u64| {
            let pieces = stream::iter([("a", 29), ("b", second), ("c", 29)]);
            Body::from_stream(pieces.then(|(piece, after)| async move {
                tokio::time::sleep(Duration::from_secs(after)).await;
                Ok::<_, Infallible>(Bytes::from_static(piece.as_bytes()))
            }))
        };
        assert_eq!(read(pieces(29), 5, 0).await.unwrap(), "abc");
        assert_eq!(read(pieces(31), 5, 0).await, Err(BodyError::Silent));
        assert_eq!(read(pieces(31), 0, 80).await, Err(BodyError::Silent), "over the limit too");
    }

    #[tokio::test]
    async fn the_id_of_a_message_over_the_limit_is_found() {
        let id = Some(Id::number(41));
        let late = pieces(&["{\"a\":\"xxxxxxx\"", ",\"i", "d\":41", "}"]);
        assert_eq!(read(late, 20, 80).await, Err(BodyError::TooLarge(id.clone())));
        let whole = Body::from("{\"id\":41,\"a\":\"xxxxxxx\"}");
        assert_eq!(read(whole, 20, 80).await, Err(BodyError::TooLarge(id)));
    }
}
