//! Reading a body up to a limit, without a copy where it came in one piece.

use crate::mcp::wire::{Id, IdScan};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body;

/// So much is set aside at once for a body that says its length.
const ROOM: u64 = 1 << 20;

/// Why there is no body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// It is over the limit. The id of the message, if it could be told.
    TooLarge(Option<Id>),
    /// It broke off.
    Broken,
}

/// Reads a body of up to `limit` bytes. One over the limit is read on, and thrown away, up to
/// `skip` bytes: read to its end the connection stays, and its id may be found.
///
/// # Errors
/// A body over the limit, or one that broke off.
pub(super) async fn read<B>(mut body: B, limit: usize, skip: u64) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let announced = body.size_hint().lower();
    let Some(first) = next(&mut body).await? else { return Ok(Bytes::new()) };
    if first.len() > limit || announced > limit as u64 {
        return Err(skip_rest(body, &first, skip).await);
    }
    let Some(second) = next(&mut body).await? else { return Ok(first) };
    let room = announced.min(ROOM) as usize;
    let mut whole = BytesMut::with_capacity(room.max(first.len() + second.len()));
    whole.extend_from_slice(&first);
    let mut piece = second;
    loop {
        if whole.len() + piece.len() > limit {
            whole.extend_from_slice(&piece);
            return Err(skip_rest(body, &whole, skip).await);
        }
        whole.extend_from_slice(&piece);
        match next(&mut body).await? {
            Some(next) => piece = next,
            None => return Ok(whole.freeze()),
        }
    }
}

async fn next<B>(body: &mut B) -> Result<Option<Bytes>, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    while let Some(frame) = body.frame().await {
        match frame.map_err(|_| BodyError::Broken)?.into_data() {
            Ok(data) if !data.is_empty() => return Ok(Some(data)),
            _ => {}
        }
    }
    Ok(None)
}

async fn skip_rest<B>(mut body: B, start: &[u8], skip: u64) -> BodyError
where
    B: Body<Data = Bytes> + Unpin,
{
    let (mut scan, mut read) = (IdScan::default(), start.len() as u64);
    scan.push(start);
    while read <= skip {
        match next(&mut body).await {
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
    use futures::stream;
    use std::convert::Infallible;

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

    #[tokio::test]
    async fn the_id_of_a_message_over_the_limit_is_found() {
        let id = Some(Id::number(41));
        let late = pieces(&["{\"a\":\"xxxxxxx\"", ",\"i", "d\":41", "}"]);
        assert_eq!(read(late, 20, 80).await, Err(BodyError::TooLarge(id.clone())));
        let whole = Body::from("{\"id\":41,\"a\":\"xxxxxxx\"}");
        assert_eq!(read(whole, 20, 80).await, Err(BodyError::TooLarge(id)));
    }
}
