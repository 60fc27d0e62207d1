//! Which keys of an object sound like a secret.
//!
//! A key is read as words (`userPassword`, `API_KEY`, `x-auth-token`) and, for names without
//! visible words, by its end (`dbpassword`). A wrong "yes" hides something harmless in the trace;
//! a wrong "no" stores a secret, so doubt counts as "yes".

/// What a key says of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sounds {
    /// Nothing.
    Harmless,
    /// It is a secret, unless it is a number: `max_tokens`.
    SecretUnlessNumber,
    /// It is a secret.
    Secret,
}

/// Longest word of the lists below, and one more.
const LONGEST: usize = 16;

const WORDS: [&[u8]; 29] = [
    b"password",
    b"passwords",
    b"passwd",
    b"pwd",
    b"passphrase",
    b"passphrases",
    b"passcode",
    b"secret",
    b"secrets",
    b"token",
    b"authorization",
    b"credential",
    b"credentials",
    b"creds",
    b"cookie",
    b"cookies",
    b"bearer",
    b"jwt",
    b"apikey",
    b"apikeys",
    b"privatekey",
    b"accesskey",
    b"secretkey",
    b"authkey",
    b"apitoken",
    b"accesstoken",
    b"refreshtoken",
    b"authtoken",
    b"idtoken",
];

/// Before `key` or `keys`.
const KINDS_OF_KEY: [&[u8]; 12] = [
    b"api",
    b"private",
    b"access",
    b"secret",
    b"signing",
    b"encryption",
    b"ssh",
    b"auth",
    b"master",
    b"account",
    b"shared",
    b"subscription",
];

const ENDS: [&[u8]; 19] = [
    b"password",
    b"passwords",
    b"passwd",
    b"passphrase",
    b"secret",
    b"secrets",
    b"token",
    b"apikey",
    b"apikeys",
    b"privatekey",
    b"accesskey",
    b"secretkey",
    b"authkey",
    b"signingkey",
    b"encryptionkey",
    b"authorization",
    b"credential",
    b"credentials",
    b"cookie",
];

/// One word, lower-case; longer ones than any in the lists are only counted.
#[derive(Clone, Copy, Default)]
struct Word {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Word {
    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.length) {
            *slot = byte.to_ascii_lowercase();
        }
        self.length += 1;
    }

    fn get(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Looks at one key, unescaped, of any length.
pub(super) fn secret_key(key: &[u8]) -> Sounds {
    let (mut sounds, mut before, mut word) = (Sounds::Harmless, Word::default(), Word::default());
    for (i, &byte) in key.iter().enumerate() {
        let in_word = is_letter(byte);
        let hump = in_word && byte.is_ascii_uppercase() && i > 0 && {
            let lower = |b: Option<&u8>| b.is_some_and(u8::is_ascii_lowercase);
            !key[i - 1].is_ascii_uppercase() || lower(key.get(i + 1))
        };
        if (!in_word || hump) && word.length > 0 {
            match judge(before, word) {
                Sounds::Secret => return Sounds::Secret,
                Sounds::SecretUnlessNumber => sounds = Sounds::SecretUnlessNumber,
                Sounds::Harmless => {}
            }
            before = std::mem::take(&mut word);
        }
        if in_word {
            word.push(byte);
        }
    }
    match judge(before, word) {
        Sounds::Harmless if ends_secret(key) => Sounds::Secret,
        Sounds::Harmless => sounds,
        last => last,
    }
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte >= 0x80
}

fn judge(before: Word, word: Word) -> Sounds {
    match word.get() {
        b"key" | b"keys" if KINDS_OF_KEY.contains(&before.get()) => Sounds::Secret,
        b"tokens" => Sounds::SecretUnlessNumber,
        word if WORDS.contains(&word) => Sounds::Secret,
        _ => Sounds::Harmless,
    }
}

fn ends_secret(key: &[u8]) -> bool {
    let (mut end, mut length) = ([0; LONGEST], 0);
    for byte in key.iter().rev().filter(|b| is_letter(**b)).take(LONGEST) {
        length += 1;
        end[LONGEST - length] = byte.to_ascii_lowercase();
    }
    let end = &end[LONGEST - length..];
    ENDS.iter().any(|word| end.ends_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    fn secrets(
        #[values(
            "password",
            "PASSWORD",
            "Password",
            "userPassword",
            "db_password",
            "DB-PASSWORD",
            "password_hash",
            "dbpassword",
            "passwd",
            "pwd",
            "secret",
            "clientSecret",
            "client_secret_value",
            "token",
            "accessToken",
            "x-auth-token",
            "GITHUB_TOKEN",
            "githubtoken",
            "apiKey",
            "api_key",
            "API-Key",
            "APIKey",
            "apikey",
            "xapikey",
            "privateKey",
            "private_key_pem",
            "aws_secret_access_key",
            "Authorization",
            "proxy-authorization",
            "credential",
            "credentials",
            "Cookie",
            "set-cookie",
            "my secret",
            "secret.name",
            "OPENAI_API_KEYS",
            "sshKey",
            "geheimnis_password_é"
        )]
        key: &str,
    ) {
        assert_eq!(secret_key(key.as_bytes()), Sounds::Secret);
    }

    #[rstest]
    fn harmless(
        #[values(
            "",
            "path",
            "name",
            "key",
            "keys",
            "sort_key",
            "primaryKey",
            "author",
            "secretary",
            "tokenizer",
            "monkey",
            "passage",
            "compass",
            "keyboard",
            "content",
            "pass",
            "API",
            "é"
        )]
        key: &str,
    ) {
        assert_eq!(secret_key(key.as_bytes()), Sounds::Harmless);
    }

    #[test]
    fn numbers_of_tokens_are_no_secret() {
        for key in ["max_tokens", "inputTokens", "tokens"] {
            assert_eq!(secret_key(key.as_bytes()), Sounds::SecretUnlessNumber, "{key}");
        }
    }

    #[test]
    fn length_does_not_matter() {
        for length in 0..400 {
            let key = format!("{}password", "a".repeat(length));
            assert_eq!(secret_key(key.as_bytes()), Sounds::Secret, "{length}");
            let key = format!("password_{}", "a".repeat(length));
            assert_eq!(secret_key(key.as_bytes()), Sounds::Secret, "{length}");
            let key = "x".repeat(length).to_string();
            assert_eq!(secret_key(key.as_bytes()), Sounds::Harmless, "{length}");
        }
    }
}
