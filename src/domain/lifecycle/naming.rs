//! Names of Session pods, and UIDs of attachments that no object stands for: pure functions of what
//! they belong to, so that a pod is never made twice and nothing is taken for another's.

use crate::domain::identity::Fingerprint;

/// The longest name of a pod: it is also the host name inside.
const MAX_NAME: usize = 63;
/// How much of the digest ends a name, in hex digits: with 64 bits no two pods of a namespace meet.
const DIGEST: usize = 16;
/// How much of the digest makes a UID, in hex digits; with the word before as long as any UID.
const OWN_DIGEST: usize = 32;

/// The name of a generation's pod: readable at the front, unique by the hash at the end, at most
/// 63 characters, a valid DNS label.
pub fn pod_name(
    session: &str,
    session_uid: &str,
    attachment: &str,
    attachment_uid: &str,
    generation: i64,
) -> String {
    let digest = Fingerprint::new("pod-name")
        .field(session_uid)
        .field(attachment_uid)
        .field(generation.to_be_bytes())
        .finish();
    let tail = format!("-{generation}-{}", &digest["sha256:".len()..][..DIGEST]);
    let head: String = format!("{session}-{attachment}")
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .take(MAX_NAME - tail.len())
        .collect();
    format!("{}{tail}", head.trim_matches('-'))
}

/// The UID of an attachment that a Session brings itself: the same as long as the Session has the
/// name, never that of an object or of another Session's.
pub fn own_attachment_uid(session_uid: &str, attachment: &str) -> String {
    let digest = Fingerprint::new("own-attachment").field(session_uid).field(attachment).finish();
    format!("own-{}", &digest["sha256:".len()..][..OWN_DIGEST])
}

/// The generation that a pod of this name belongs to; none when it is no name of [`pod_name`].
pub fn generation_of(name: &str) -> Option<i64> {
    let (head, digest) = name.rsplit_once('-')?;
    let (_, generation) = head.rsplit_once('-')?;
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let ours = digest.len() == DIGEST && digest.bytes().all(hex);
    generation.parse().ok().filter(|n: &i64| ours && *n > 0 && generation == n.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_names_are_readable() {
        let name = pod_name("coder", "s-1", "files", "a-1", 12);
        assert!(name.starts_with("coder-files-12-"), "{name}");
    }

    #[test]
    fn long_names_with_one_prefix_differ() {
        let long = "n".repeat(253);
        let one = pod_name(&long, "s-1", &format!("{long}a"), "a-1", 1);
        let two = pod_name(&long, "s-1", &format!("{long}b"), "a-2", 1);
        assert_ne!(one, two);
        assert_ne!(one, pod_name(&long, "s-1", &format!("{long}a"), "a-1", 2));
    }

    #[test]
    fn sessions_whose_names_run_into_their_attachments_names_differ() {
        let one = pod_name("a", "s-1", "b-c", "a-1", 1);
        let two = pod_name("a-b", "s-2", "c", "a-1", 1);
        let (head, tail) = one.split_at("a-b-c-1-".len());
        assert!(two.starts_with(head) && !two.ends_with(tail), "{one} {two}");
        assert_eq!(tail.len(), DIGEST);
    }

    #[test]
    fn an_attachment_of_a_sessions_own_has_one_uid_that_fits_a_label() {
        let uid = own_attachment_uid("s-1", "files");
        assert_eq!(uid, own_attachment_uid("s-1", "files"));
        assert_ne!(uid, own_attachment_uid("s-2", "files"), "another Session's is another");
        assert_ne!(uid, own_attachment_uid("s-1", "issues"));
        assert_eq!((uid.len(), &uid[..4]), (36, "own-"));
    }

    #[test]
    fn other_names_have_no_generation() {
        for name in ["", "a", "coder-files-12", "coder-12-0123456789abcdeg", "x-0-0123456789abcdef"]
        {
            assert_eq!(generation_of(name), None, "{name}");
        }
        for name in ["x-012-0123456789abcdef", "x--0123456789abcdef", "x-a-0123456789abcdef"] {
            assert_eq!(generation_of(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn names_are_dns_labels(s in "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", a in "[0-9]([a-z0-9.-]{0,251}[a-z0-9])?", n in 1i64..) {
            let name = pod_name(&s, "u", &a, "v", n);
            prop_assert!(name.len() <= 63);
            prop_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            prop_assert!(!name.starts_with('-') && !name.ends_with('-'));
            prop_assert_eq!(generation_of(&name), Some(n));
        }
    }
}
