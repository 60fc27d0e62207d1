//! The protocol revisions of this era.

/// A revision that is spoken here, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// 2024-11-05.
    V2024_11_05,
    /// 2025-03-26.
    V2025_03_26,
    /// 2025-06-18.
    V2025_06_18,
    /// 2025-11-25.
    V2025_11_25,
}

impl Revision {
    /// Every one, newest first.
    pub const ALL: [Self; 4] =
        [Self::V2025_11_25, Self::V2025_06_18, Self::V2025_03_26, Self::V2024_11_05];
    /// The one that is offered and asked for.
    pub const LATEST: Self = Self::V2025_11_25;

    /// As it stands on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
    }

    /// The revision of that date, if it is spoken here.
    pub fn known(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.as_str() == text)
    }

    /// What is answered to a client that asks for `text`: the same if it is spoken here, else the
    /// newest.
    pub fn negotiate(text: &str) -> Self {
        Self::known(text).unwrap_or(Self::LATEST)
    }
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("2025-11-25", "2025-11-25")]
    #[case("2025-06-18", "2025-06-18")]
    #[case("2025-03-26", "2025-03-26")]
    #[case("2024-11-05", "2024-11-05")]
    #[case::unknown("1999-01-01", "2025-11-25")]
    #[case::modern("2026-07-28", "2025-11-25")]
    #[case::empty("", "2025-11-25")]
    #[case::padded(" 2025-06-18", "2025-11-25")]
    fn the_answer_is_always_one_of_the_documented(#[case] asked: &str, #[case] answer: &str) {
        assert_eq!(Revision::negotiate(asked).as_str(), answer);
    }
}
